"""The study and its workers, with the driver that joins searcher, scheduler and engine over the ledger."""

from trainwright.study.driver.failures import StudyFailed
from trainwright.study.forecast.forecast import Forecast
from trainwright.study.study import Study
from trainwright.study.worker import Worker

__all__ = ["Forecast", "Study", "StudyFailed", "Worker"]
