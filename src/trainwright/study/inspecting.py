"""The read-only part of a study: best trial, Pareto front, recommendation, parameter importance, data frame."""

from typing import TYPE_CHECKING

from trainwright.errors import MissingExtra
from trainwright.ledger import Constraint, Objective, State, TrialState
from trainwright.ledger.writers import under_way
from trainwright.space import Space
from trainwright.study.results import By, Results, Stretch, lineage_of, recommend_trial
from trainwright.study.study_log import StudyLog

if TYPE_CHECKING:
    import polars as pl

    from trainwright.search.importance import Importance

__all__ = ["Inspecting"]


class Inspecting:
    """The part of a study that is read."""

    space: Space
    _log: StudyLog

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives, in their order."""
        return self._log.objectives

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints, in their order."""
        return self._log.state.constraints

    @property
    def seed(self) -> int:
        """The seed of every draw."""
        return self._log.state.seed

    @property
    def state(self) -> State:
        """The state folded from the ledger's records."""
        return self._log.state

    @property
    def trials(self) -> list[TrialState]:
        """All trials by number."""
        return [self._log.state.trials[number] for number in sorted(self._log.state.trials)]

    @property
    def under_way(self) -> dict[int, str]:
        """The trials recorded as running, by number: "running", "silent" or, if their worker is gone, "lost".

        A worker on another host is silent when it has not beaten for a third of a lease (a minute; Redis: 20 s).
        """
        return under_way(self._log.ledger, self._log.state)

    @property
    def dropped(self) -> list[str]:
        """What could not be read of the ledger, a sentence each."""
        return [str(dropped) for dropped in self._log.ledger.dropped()]

    @property
    def best(self) -> TrialState:
        """The trial with the best observed value of the one objective, of those that keep all bounds and constraints.

        Raises `StudyError` while no result does, and for a study of several objectives, which has a front instead.
        """
        return Results.of(self._log.state).best()

    def lineage(self, trial: int | None = None) -> list[Stretch]:
        """Return with which parameters the state of a trial (None: the best) was trained, from epoch 1 to its last.

        One stretch for a trial of its own, more for a clone of population-based training.
        """
        return lineage_of(self._log.state, self.best.number if trial is None else trial)

    def recommend(self, *, by: By = "estimate") -> TrialState:
        """Return the trial to deploy: of least estimated loss, which a lucky noisy result is not, or `study.best`.

        The estimate is a forest's, whose leaf size 5-fold error has chosen; the trial is one of those tried.
        """
        return recommend_trial(self._log.state, self.space, by)

    def importance(self, metric: str | None = None, *, epoch: int | None = None) -> "Importance":
        """Return each parameter's share of the variance of a metric at an epoch, with an interval of each share.

        The metric is any that trials report (None: the first objective), the epoch the last that 95 % of the trials
        have reached, unless one is given. A parameter whose interval begins at 0 is not known to matter. Raises
        `SearchError` while there are too few results.
        """
        from trainwright.search.importance import importance_of

        return importance_of(self._log.state, self.space, metric, epoch=epoch)

    @property
    def feasible(self) -> list[TrialState]:
        """The trials whose results keep every bound and every constraint, by number."""
        found = Results.of(self._log.state)
        return [trial for trial, kept in zip(found.trials, found.feasible, strict=True) if kept]

    @property
    def front(self) -> list[TrialState]:
        """The trials that no other trial beats in every objective, by number; only feasible ones if there are any."""
        return Results.of(self._log.state).front()

    @property
    def ranks(self) -> dict[int, int]:
        """The Pareto rank of each result by trial number: 0 on the front; infeasible ones come behind all others."""
        return Results.of(self._log.state).ranks()

    @property
    def hypervolume(self) -> float:
        """The volume of losses between the feasible front and a reference point; it never falls.

        The point lies a tenth of the range beyond the worst of the first results, two a parameter and one, and is then
        fixed for good. Raises `StudyError` before, for one objective, and for more than six.
        """
        return Results.of(self._log.state).hypervolume()

    def hypervolume_over_time(self) -> list[tuple[int, float]]:
        """Return each result's trial number, in the order in which they ended, and the hypervolume after it."""
        return Results.of(self._log.state).hypervolume_over_time()

    def to_frame(self) -> "pl.DataFrame":
        """Return one row per trial: number, status, params, values, epochs, seconds."""
        with MissingExtra.instead_of_import_error("study.to_frame()", "polars", "parquet"):
            import polars as pl
        from trainwright.ledger.rows import rows

        return pl.DataFrame(rows(self._log.state), infer_schema_length=None)
