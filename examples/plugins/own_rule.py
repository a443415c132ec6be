"""A promotion rule of your own: stop a trial that is too far behind the best one at the same epoch."""

from dataclasses import dataclass, field

import trainwright as tw
from trainwright.errors import ScheduleError
from trainwright.schedule import Continue, Event, PromotionRule, Reason, Reported, RuleView, Stop, TrialView

__all__ = ["Race"]


@dataclass(slots=True)
class Index:
    """What the rule remembers: the best loss at each epoch, and how far each trial has come."""

    best: dict[int, float] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Race(PromotionRule):
    """Stop a trial whose loss is more than `margin` above the best at its epoch, from `min_epochs` on; O(1)."""

    margin: float
    min_epochs: int = 1
    max_epochs: int | None = None

    def __post_init__(self) -> None:
        if not self.margin > 0:
            raise ScheduleError(f"Race.margin: got {self.margin!r}; allowed: a number > 0")

    def empty(self) -> Index:
        """Return the index of a study without reports."""
        return Index()

    def fold(self, index: Index, event: Event) -> Index:
        """Take a report; one of an epoch that the trial has passed changes nothing."""
        if isinstance(event, Reported) and event.epoch > index.epochs.get(event.trial, 0):
            index.epochs[event.trial] = event.epoch
            index.best[event.epoch] = min(event.losses[0], index.best.get(event.epoch, float("inf")))
        return index

    def on_report(self, index: Index, view: RuleView, trial: TrialView) -> Continue | Stop:  # noqa: ARG002
        """Judge a trial by the report that was just folded."""
        if trial.epoch < self.min_epochs:
            return Continue()
        threshold = index.best[trial.epoch] + self.margin
        reason = Reason(rule="Race", epoch=trial.epoch, value=trial.loss, threshold=threshold)
        return Stop(reason) if trial.loss > threshold else Continue(reason)

    def next_epoch(self, index: Index, trial: TrialView) -> int:  # noqa: ARG002
        """Return the next epoch whose report can change a verdict."""
        return max(self.min_epochs, trial.epoch + 1)


def train(trial: tw.Trial) -> None:
    for epoch in trial.epochs(20):
        trial.report(loss=trial.params["floor"] + 1 / epoch)


if __name__ == "__main__":
    study = tw.Study(tw.Space(floor=tw.Float(0, 1)), "min loss", seed=0, searcher=tw.RandomSearcher())
    study.run(train, trials=20, scheduler=Race(margin=0.3, min_epochs=2), progress=False)
    print(f"{study.state.counts['stopped']} of {len(study.trials)} trials were stopped")
