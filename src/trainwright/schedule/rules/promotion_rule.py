"""The base class of promotion rules (early stopping included), which decide whether a trial continues, pauses or stops.

A rule is a frozen configuration, a pure fold of events into an index, and verdicts from it.
"""

from dataclasses import dataclass
from typing import Any

from trainwright.errors import ScheduleError
from trainwright.space import Space
from trainwright.space.configuration import Configuration

__all__ = [
    "CONTINUE",
    "WAIT",
    "Clone",
    "Continue",
    "Ended",
    "Event",
    "Index",
    "Judged",
    "New",
    "Opened",
    "Pause",
    "Promote",
    "Promoted",
    "PromotionRule",
    "Reason",
    "Reported",
    "RuleView",
    "Started",
    "Stop",
    "TrialView",
    "Verdict",
    "Wait",
]

Index = Any
"""What a rule remembers; made by `empty`, changed only by `fold`, picklable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """The study was created: the first event, with the seed of all draws."""

    seed: int


@dataclass(frozen=True, slots=True)
class Clone:
    """Start a new trial from the newest checkpoint of `parent`, in the place of `replaces`, which has ended."""

    parent: int
    replaces: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """A trial runs, for the first time or again; a `clone` began from its parent's checkpoint of `epoch`."""

    trial: int
    clone: Clone | None = None
    epoch: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """A trial reported `losses` (one per objective, lower is better, +inf if not finite) at `epoch`.

    `violation` is by how much it breaks bounds and constraints in all; 0 keeps them.
    """

    trial: int
    epoch: int
    losses: tuple[float, ...]
    violation: float = 0.0
    at_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """Whoever runs a trial has judged it at the rung of `epoch`: it pauses there, or goes on.

    Of many drivers each knows other reports at that moment, but this verdict counts for all.
    """

    trial: int
    epoch: int
    pauses: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Promoted:
    """The rule's answer `Promote` was accepted: the trial goes on until `until_epoch`."""

    trial: int
    until_epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A trial ended for good; `failed` if it has no result, which includes one that was lost too often."""

    trial: int
    failed: bool


Event = Opened | Started | Reported | Judged | Promoted | Ended


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Why a rule decided as it did: the value it looked at and the threshold it held it against."""

    rule: str
    epoch: int
    value: float | None = None
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on. A reason is given where the rule compared something."""

    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Keep the checkpoint, give the devices back, wait for a promotion."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Stop:
    """End the trial; its last report is its result."""

    reason: Reason


Verdict = Continue | Pause | Stop
CONTINUE = Continue()


@dataclass(frozen=True, slots=True)
class Promote:
    """Let the paused `trial` go on until `until_epoch`."""

    trial: int
    until_epoch: int


@dataclass(frozen=True, slots=True)
class New:
    """Start a new trial."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to start until something more is known."""


WAIT = Wait()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialView:
    """A trial at the moment of a report: its highest epoch, and the losses there, one per objective."""

    number: int
    epoch: int
    losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        """The loss of the first objective."""
        return self.losses[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleView:
    """The study as a rule may see it: how many new trials the budget still allows, its seed, and what time it is.

    `final`: only trials that go on to the end are still of use: the best that are paused go on, whatever their share.
    """

    remaining: int
    seed: int = 0
    at_seconds: float = 0.0
    final: bool = False


class PromotionRule:
    """Who goes on. No clock, no I/O, no randomness but counter-based: a replay of the events gives the same index.

    As it stands it compares nothing and pauses nobody; subclasses give what they decide.
    """

    max_epochs: int | None
    """The full length of a trial in epochs; None if the training function decides."""

    @property
    def promotes(self) -> bool:
        """Whether it pauses trials to go on with some of them later."""
        return False

    @property
    def reads_curves(self) -> bool:
        """Whether reports between those of `next_epoch` count as well; if not, a simulation may leave them out."""
        return True

    @property
    def clones(self) -> bool:
        """Whether it may answer `Clone`: trials then need checkpoints, and the study a folder."""
        return False

    def check(self, objectives: int, trials: int | None = None) -> None:  # noqa: ARG002 -- for others that need it
        """Refuse a study of so many objectives, or of so few trials, that the rule cannot judge them.

        More objectives than one are refused: a rule that looks at the first alone would drop the best at the others.
        """
        if objectives > 1:
            raise ScheduleError(
                f"{type(self).__name__} compares trials by one objective, the study has {objectives}; "
                "give the study one objective, or use MultiObjectiveASHA or FixedEpochs"
            )

    def check_space(self, space: Space) -> None:
        """Refuse a space that the rule can do nothing with."""

    def clone_of(self, space: Space, parent: Configuration, *, seed: int, number: int) -> Configuration:  # noqa: ARG002
        """Return the configuration of a clone, trial `number` of the study with this seed."""
        return parent

    def empty(self) -> Index:
        """Return the index of a study without events; None if there is nothing to remember, of any."""
        return None

    def fold(self, index: Index, event: Event) -> Index:  # noqa: ARG002 -- likewise
        """Return the index after `event`; the one passed in is used up. A repeated event changes nothing."""
        return index

    def on_report(self, index: Index, view: RuleView, trial: TrialView) -> Verdict:  # noqa: ARG002 -- likewise
        """Judge a trial whose report has just been folded."""
        return CONTINUE

    def on_free(self, index: Index, view: RuleView) -> Promote | New | Clone | Wait:  # noqa: ARG002 -- likewise
        """Say what to do with free devices: start a new trial if the budget allows one."""
        return New() if view.remaining > 0 else WAIT

    def next_epoch(self, index: Index, trial: TrialView) -> int:  # noqa: ARG002 -- likewise
        """Return the next epoch whose report can change a verdict."""
        return trial.epoch + 1

    def survival(self, index: Index, view: RuleView, trial: TrialView) -> tuple[float, ...]:  # noqa: ARG002 -- likewise
        """Return the probability that the trial reaches each later rung; nothing without rungs."""
        return ()
