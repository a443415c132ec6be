"""AnyOf: combines two rules; stop over pause over continue, and the first rule hands out free devices."""

from dataclasses import dataclass

from trainwright.errors import ScheduleError
from trainwright.schedule.rules.promotion_rule import (
    CONTINUE,
    Clone,
    Continue,
    Event,
    Index,
    New,
    Pause,
    Promote,
    PromotionRule,
    RuleView,
    Stop,
    TrialView,
    Verdict,
    Wait,
)
from trainwright.space import Space
from trainwright.space.configuration import Configuration

__all__ = ["AnyOf"]


@dataclass(frozen=True, slots=True)
class AnyOf(PromotionRule):
    """Stop a trial if either rule does, at the cost of both."""

    first: PromotionRule
    second: PromotionRule

    def __post_init__(self) -> None:
        for rule in (self.first, self.second):
            if isinstance(rule, type) or not isinstance(rule, PromotionRule):
                raise ScheduleError(
                    f"AnyOf: got {rule!r}; allowed: two rules, such as AnyOf(ASHA(max_epochs=27), Median())"
                )

    @property
    def max_epochs(self) -> int | None:  # type: ignore[override]  # it follows from the two rules
        """The shorter of the two lengths."""
        lengths = [rule.max_epochs for rule in (self.first, self.second) if rule.max_epochs is not None]
        return min(lengths, default=None)

    @property
    def promotes(self) -> bool:
        """If either rule does."""
        return self.first.promotes or self.second.promotes

    @property
    def clones(self) -> bool:
        """If the first does, which hands out free devices."""
        return self.first.clones

    def check_space(self, space: Space) -> None:
        """Refuse what either refuses."""
        self.first.check_space(space)
        self.second.check_space(space)

    def clone_of(self, space: Space, parent: Configuration, *, seed: int, number: int) -> Configuration:
        """Ask the first rule."""
        return self.first.clone_of(space, parent, seed=seed, number=number)

    def check(self, objectives: int, trials: int | None = None) -> None:
        """Refuse what either refuses, and a second rule that pauses: nobody would promote those trials."""
        if self.second.promotes:
            raise ScheduleError(
                f"AnyOf: got {type(self.second).__name__} second, which pauses trials that only the first rule can "
                f"promote; allowed: AnyOf({type(self.second).__name__}(...), {type(self.first).__name__}(...)), or a "
                "second rule that stops trials"
            )
        self.first.check(objectives, trials)
        self.second.check(objectives, trials)

    def empty(self) -> Index:
        """Return both indices."""
        return self.first.empty(), self.second.empty()

    def fold(self, index: Index, event: Event) -> Index:
        """Fold the event into both."""
        return self.first.fold(index[0], event), self.second.fold(index[1], event)

    def on_report(self, index: Index, view: RuleView, trial: TrialView) -> Verdict:
        """Return the strictest of the two verdicts; the first rule's on a tie."""
        verdicts = self.first.on_report(index[0], view, trial), self.second.on_report(index[1], view, trial)
        # The strictest verdict wins: stop over pause over continue.
        for kind in (Stop, Pause):
            for verdict in verdicts:
                if isinstance(verdict, kind):
                    return verdict
        return next((v for v in verdicts if isinstance(v, Continue) and v.reason is not None), CONTINUE)

    def on_free(self, index: Index, view: RuleView) -> Promote | New | Clone | Wait:
        """Ask the first rule."""
        return self.first.on_free(index[0], view)

    def next_epoch(self, index: Index, trial: TrialView) -> int:
        """Return the nearer of the two."""
        return min(self.first.next_epoch(index[0], trial), self.second.next_epoch(index[1], trial))

    def survival(self, index: Index, view: RuleView, trial: TrialView) -> tuple[float, ...]:
        """Return the first rule's."""
        return self.first.survival(index[0], view, trial)
