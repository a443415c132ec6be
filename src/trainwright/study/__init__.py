"""What a person holds: the study, its workers, and the loop that joins searcher, scheduler and engine."""

from trainwright.study.driver import Budget, StudyFailed
from trainwright.study.study import Study
from trainwright.study.worker import Worker

__all__ = ["Budget", "Study", "StudyFailed", "Worker"]
