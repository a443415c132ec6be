"""Forecasts a run with a deadline from the study's own curves, and reports how it ended."""

from trainwright.cluster import Cluster
from trainwright.engine import Engine
from trainwright.errors import StudyError
from trainwright.ledger import State
from trainwright.schedule import Scheduler
from trainwright.study.simulating import Simulating

__all__ = ["expect_by_deadline", "outcome_by_deadline"]

_STUDIES = 10


def expect_by_deadline(study: Simulating, scheduler: Scheduler, engine: Engine, seconds: float) -> str | None:
    """Return what simulations of the study's own trials come to by the deadline; None if too few epochs are known."""
    length = scheduler.rule.max_epochs
    if length is None or len(study.objectives) > 1 or not any(trial.epoch >= length for trial in study.trials):
        return None
    slots, per_node = engine.slots, engine.slots_per_node
    cluster = Cluster(slots // per_node, per_node) if slots % per_node == 0 else Cluster(1, slots)
    try:
        found = study.simulate(scheduler, engine=study.measured(cluster), deadline_seconds=seconds, seeds=_STUDIES)
    except StudyError:  # nothing of the study can be simulated
        return None
    (goal,) = study.objectives
    sign = 1 if goal.loss(1.0) > 0 else -1
    best, full = found.full_loss, found.full
    more = f"{full.low:.0f} to {full.high:.0f} more trials complete by the deadline"
    if full.mean < 1:
        return f"forecast: {more}; fewer epochs, or more devices a trial, would bring more"
    ends = sorted(sign * loss for loss in (best.low, best.high))
    return f"forecast: {more}, the best of them with {goal.metric} from {ends[0]:.4g} to {ends[1]:.4g}"


def outcome_by_deadline(state: State, before: int, best: str) -> str:
    """Return how many trials are complete beyond those `before`, and which is the best."""
    return f"deadline: {state.counts['complete'] - before} more trials are complete; {best or 'none has a result'}"
