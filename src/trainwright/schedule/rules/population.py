"""Population-based training (PBT): the worst trials exploit the best ones' state, and explore perturbed parameters.

Jaderberg et al., arXiv 1711.09846, without a barrier: a trial is compared when it comes to the end of an interval.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np

from trainwright.errors import ScheduleError
from trainwright.randomness import rng
from trainwright.schedule.rules.promotion_rule import (
    CONTINUE,
    WAIT,
    Clone,
    Continue,
    Ended,
    Event,
    Judged,
    New,
    Pause,
    Promote,
    Promoted,
    PromotionRule,
    Reason,
    Reported,
    RuleView,
    Started,
    Stop,
    TrialView,
    Verdict,
    Wait,
)
from trainwright.schedule.rules.rung_rule import as_fraction
from trainwright.settings import Settings
from trainwright.space import Float, Int, Space
from trainwright.space.configuration import Configuration
from trainwright.validators import each, integer, number, text

__all__ = ["PopulationBasedTraining"]

_FACTORS = (0.8, 1.2)  # of the paper
_TRIES = 16  # perturbations, of which the first legal one is taken


@dataclass(slots=True)
class _Member:
    start: int  # the epoch of the checkpoint that it began from
    epoch: int
    level: int  # the end of the last interval that it came to; `start` before the first
    judged: int  # the epoch at which it was judged last
    loss: float = math.inf  # at the end of that interval
    paused: bool = False
    ended: bool = False


class _Rank(NamedTuple):
    loss: float
    trial: int


@dataclass(slots=True)
class _Population:
    members: dict[int, _Member] = field(default_factory=dict)  # all that ever were
    vacant: set[int] = field(default_factory=set)  # those that ended early and have no successor
    gone: set[int] = field(default_factory=set)  # those that ended early

    @property
    def size(self) -> int:
        """How many train, wait, or have come to the end."""
        return len(self.members) - len(self.gone)

    def ranked(self) -> list[_Rank]:
        """Return who has come to the end of an interval and was not replaced, best first; ties by number."""
        replaced = self.gone - self.vacant
        return sorted(_Rank(m.loss, n) for n, m in self.members.items() if m.level > m.start and n not in replaced)


@dataclass(frozen=True, kw_only=True, slots=True)
class PopulationBasedTraining(PromotionRule, Settings, error=ScheduleError):
    """Train `population` trials; every `interval` epochs one of the worst makes way for a clone of one of the best.

    The worst and the best are the share `quantile` of the members, by the loss at the end of each one's last interval.
    A clone is a new trial, of the budget as any other: it goes on from the newest checkpoint of its parent, with each
    parameter in `perturb` drawn anew with probability `resample`, else times 0.8 or 1.2, within the space. A trial that
    failed is replaced as well. Where members wait for devices, those that are ahead pause for them. O(n log n) per
    interval of a trial.
    """

    max_epochs: Annotated[int, integer(minimum=1, of="epochs")]
    perturb: Annotated[tuple[str, ...] | list[str], each(text(), least=1, words="names of Float and Int parameters")]
    population: Annotated[int, integer(minimum=2, of="trials")] = 8
    interval: Annotated[int, integer(minimum=1, of="epochs")] = 1
    quantile: Annotated[float, number(above=0, maximum=0.5)] = 0.25
    resample: Annotated[float, number(minimum=0, maximum=1)] = 0.25

    def check_together(self) -> None:
        """Refuse a quantile of nobody, and intervals that end with the trial."""
        object.__setattr__(self, "perturb", tuple(self.perturb))  # a table has a list
        if not self._share(self.population):
            raise ScheduleError(
                f"PopulationBasedTraining.quantile: got {self.quantile:g}, less than one of a population of "
                f"{self.population}; allowed: {1 / self.population:.3g} to 0.5"
            )
        if self.interval >= self.max_epochs:
            raise ScheduleError(
                f"PopulationBasedTraining.interval: got {self.interval}, not below max_epochs {self.max_epochs}, so "
                f"nobody would be compared; allowed: 1 to {self.max_epochs - 1}"
            )

    @property
    def promotes(self) -> bool:
        """Where members wait for devices."""
        return True

    @property
    def clones(self) -> bool:
        """It starts trials from checkpoints of others."""
        return True

    @property
    def reads_curves(self) -> bool:
        """Only what is reported at the ends of intervals counts."""
        return False

    def check(self, objectives: int, trials: int | None = None) -> None:
        """Refuse several objectives, and a budget that is less than the population."""
        PromotionRule.check(self, objectives, trials)
        if trials is not None and trials < self.population:
            raise ScheduleError(
                f"PopulationBasedTraining.population: got {self.population}, the budget has {trials} trials; allowed: "
                f"2 to {trials}, and fewer leave trials for clones"
            )

    def check_space(self, space: Space) -> None:
        """Refuse to perturb what is no number of the space."""
        numbers = [name for name, one in space.parameters.items() if isinstance(one, Float | Int)]
        wrong = [name for name in self.perturb if name not in numbers]
        if wrong:
            allowed = ", ".join(numbers) or "none: the space has no Float and no Int"
            raise ScheduleError(f"PopulationBasedTraining.perturb: got {wrong[0]!r}; allowed: {allowed}")

    def clone_of(self, space: Space, parent: Configuration, *, seed: int, number: int) -> Configuration:
        """Return the parent's configuration with perturbed parameters; as it is if no perturbed one is legal."""
        generator = rng(seed, "explore", number)
        row, columns = space.encode(parent.params), [column.name for column in space.columns]
        for _ in range(_TRIES):
            drawn = space.latent(generator, 1)[0]
            # What a change brings to life is drawn.
            changed = np.where(np.isnan(row), drawn, row)
            for name in self.perturb:
                place, factor = columns.index(name), generator.choice(_FACTORS)
                if generator.random() < self.resample:
                    changed[place] = drawn[place]
                elif name in parent.params:
                    changed[place] = _perturb(space.parameters[name], parent.params[name], factor)
            (found,) = space.decode(space.settle(changed[None, :]))
            # What is not perturbed stays as it is: a row may round its last bit.
            kept = {name: value for name, value in parent.params.items() if name not in self.perturb}
            params = {name: kept.get(name, found[name]) for name in columns if name in found}
            if not space.check(params):
                return space.configuration_of(params)
        return parent

    def empty(self) -> _Population:
        """Return a population of nobody."""
        return _Population()

    def fold(self, index: _Population, event: Event) -> _Population:
        """Note who is a member, how far each has come, and who makes way."""
        if isinstance(event, Started):
            if event.trial not in index.members:
                at = event.epoch
                index.members[event.trial] = _Member(start=at, epoch=at, level=at, judged=at)
                if event.clone is not None:
                    index.vacant.discard(event.clone.replaces)
            return index
        member = index.members.get(getattr(event, "trial", -1))
        if member is None:
            return index
        if isinstance(event, Reported) and event.epoch > member.epoch:
            member.epoch = event.epoch
            level = self._level(member, event.epoch)
            if level > member.level:
                member.level, member.loss = level, event.losses[0]
        elif isinstance(event, Judged) and event.epoch > member.judged:
            member.judged, member.paused = event.epoch, event.pauses
        elif isinstance(event, Promoted) and event.until_epoch > member.epoch:
            member.paused = False
        elif isinstance(event, Ended) and not member.ended:
            member.ended, member.paused = True, False
            if event.failed or member.epoch < self.max_epochs:
                index.gone.add(event.trial)
                index.vacant.add(event.trial)
        return index

    def on_report(self, index: _Population, view: RuleView, trial: TrialView) -> Verdict:
        """At the end of an interval, stop one of the worst that can be replaced; pause one that others wait for."""
        member = index.members.get(trial.number)
        if member is None or member.judged >= member.level or trial.epoch >= self.max_epochs:
            return CONTINUE
        ranked = index.ranked()
        worst = ranked[len(ranked) - self._share(len(ranked)) :]
        threshold = worst[0].loss if worst else None
        reason = Reason(rule="PopulationBasedTraining", epoch=trial.epoch, value=member.loss, threshold=threshold)
        # Every vacancy costs one trial of the budget.
        replaceable = view.remaining > len(index.vacant) and bool(self._parents(index))
        if replaceable and any(trial.number == one.trial for one in worst):
            return Stop(reason)
        unfilled = view.remaining > 0 and self.population - index.size > len(index.vacant)
        if unfilled or any(one.paused and one.epoch < trial.epoch for one in index.members.values()):
            return Pause(reason)
        return Continue(reason)

    def on_free(self, index: _Population, view: RuleView) -> Promote | New | Clone | Wait:
        """Fill the population, with a clone if one can be made; else go on with the paused trial that is behind."""
        if view.remaining > 0 and index.size < self.population:
            parents = self._parents(index)
            if not index.vacant or not parents:
                return New()
            replaces = min(index.vacant)
            return Clone(parents[int(rng(view.seed, "exploit", replaces).integers(len(parents)))], replaces)
        paused = [(member.epoch, number) for number, member in index.members.items() if member.paused]
        if not paused:
            return WAIT
        epoch, number = min(paused)
        return Promote(number, min(self.max_epochs, self._level(index.members[number], epoch) + self.interval))

    def next_epoch(self, index: _Population, trial: TrialView) -> int:
        """Return the end of the interval, or the trial's."""
        member = index.members.get(trial.number)
        before = trial.epoch if member is None else self._level(member, trial.epoch)
        return max(trial.epoch + 1, min(self.max_epochs, before + self.interval))

    def _level(self, member: _Member, epoch: int) -> int:
        """Return the end of the last interval up to an epoch, counted from where the member began."""
        return member.start + max(0, epoch - member.start) // self.interval * self.interval

    def _share(self, count: int) -> int:
        return math.floor(as_fraction(self.quantile) * count)

    def _parents(self, index: _Population) -> list[int]:
        """Return the best, of those that have epochs left."""
        ranked = index.ranked()
        best = ranked[: self._share(len(ranked))]
        going = (number for _, number in best if number not in index.gone)
        return [number for number in going if index.members[number].epoch < self.max_epochs]


def _perturb(parameter: object, value: float, factor: float) -> float:
    """Return the unit of a number times a factor, within its bounds; on a grid it moves by one point at least."""
    assert isinstance(parameter, Float | Int)  # noqa: S101 -- `check_space` refuses others
    step = parameter.step or float(isinstance(parameter, Int))
    moved = value * factor
    if abs(moved - value) < step:
        moved = value + math.copysign(step, factor - 1.0)
    return parameter.axis.place(min(parameter.high, max(parameter.low, moved)))
