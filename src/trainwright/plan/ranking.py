"""Ranking: the best plan of every strategy, best first, and why others are left out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from trainwright.plan.parallel_plan import ParallelPlan, Rejection

__all__ = ["Ranking"]


@dataclass(frozen=True, kw_only=True)
class Ranking(Sequence[ParallelPlan]):
    """A sequence of plans, best first, with the strategies that cannot be used."""

    plans: tuple[ParallelPlan, ...]
    rejected: tuple[Rejection, ...]
    priced: int = 0
    """Candidates whose times were computed."""

    @overload
    def __getitem__(self, place: int) -> ParallelPlan: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[ParallelPlan, ...]: ...
    def __getitem__(self, place: int | slice) -> ParallelPlan | tuple[ParallelPlan, ...]:
        return self.plans[place]

    def __len__(self) -> int:
        return len(self.plans)

    def __iter__(self) -> Iterator[ParallelPlan]:
        return iter(self.plans)
