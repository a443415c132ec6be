"""What a person holds: the study, and the loop that joins searcher, scheduler and engine."""

from trainwright.study.driver import Budget, StudyFailed
from trainwright.study.study import Study

__all__ = ["Budget", "Study", "StudyFailed"]
