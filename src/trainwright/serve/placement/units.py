"""Unit: the members that one instance computes; a column of the allocation matrix."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainwright.errors import AllocationError

__all__ = ["Unit", "packed_units"]


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Unit:
    """Members, by their position in the ensemble, that one process computes in turn."""

    members: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.members or min(self.members) < 0 or list(self.members) != sorted(set(self.members)):
            raise AllocationError(
                f"Unit.members: got {self.members!r}; allowed: places of members in the ensemble, ascending, each once"
            )

    @property
    def name(self) -> str:
        """The unit in a word, such as "0" or "loop(1,2)"."""
        listed = ",".join(map(str, self.members))
        return listed if len(self.members) == 1 else f"loop({listed})"


def packed_units(weights: Sequence[float], most: int | None) -> tuple[Unit, ...]:
    """Return a unit for each member, or, of more members than `most`, so many units of about equal weight.

    The heaviest first, each to the unit that has least (LPT: Graham, SIAM J. Appl. Math. 17, 1969).
    """
    count = len(weights) if most is None else min(most, len(weights))
    loads, members = [0.0] * count, [list[int]() for _ in range(count)]
    for member in sorted(range(len(weights)), key=lambda place: (-weights[place], place)):
        # Ties go to the first, so that equal weights always pack alike.
        least = min(range(count), key=lambda place: (loads[place], place))
        loads[least] += weights[member]
        members[least].append(member)
    return tuple(sorted(Unit(members=tuple(sorted(each))) for each in members if each))
