"""Unit: what an instance computes, one member or several fused in one process; a column of the allocation matrix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trainwright.errors import AllocationError

__all__ = ["KINDS", "Kind", "Unit", "check_units", "packed_units", "single_units"]

Kind = Literal["process", "loop", "streams", "vmap", "cuda_graph"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Unit:
    """Members, by their place in the ensemble, that one process computes, and how: in turn, in streams, as one batch.

    `process` is one member as it is; `loop` several in turn; `streams` several at once on one accelerator; `vmap`
    several equal networks as one; `cuda_graph` one or several, recorded and replayed.
    """

    members: tuple[int, ...]
    kind: Kind = "process"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise AllocationError(f"Unit.kind: got {self.kind!r}; allowed: {', '.join(KINDS)}")
        if not self.members or min(self.members) < 0 or list(self.members) != sorted(set(self.members)):
            raise AllocationError(
                f"Unit.members: got {self.members!r}; allowed: places of members in the ensemble, ascending, each once"
            )
        alone = len(self.members) == 1
        if alone != (self.kind == "process") and self.kind != "cuda_graph":
            wanted = "one member" if self.kind == "process" else "two members or more"
            raise AllocationError(f"Unit.members: got {self.members!r} for {self.kind!r}; allowed: {wanted}")

    @property
    def name(self) -> str:
        """The unit in a word, such as "0" or "vmap(1,2)"."""
        listed = ",".join(map(str, self.members))
        return listed if self.kind == "process" else f"{self.kind}({listed})"

    def to_json(self) -> dict[str, Any]:
        """Return the unit as a JSON object."""
        return {"members": list(self.members), "kind": self.kind}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "Unit":
        """Return the unit that `to_json` wrote."""
        return cls(members=tuple(told["members"]), kind=told["kind"])


def single_units(count: int) -> tuple[Unit, ...]:
    """Return a unit for each of `count` members."""
    return tuple(Unit(members=(member,)) for member in range(count))


def packed_units(weights: Sequence[float], most: int | None) -> tuple[Unit, ...]:
    """Return a unit for each member, or, of more members than `most`, as many loops of about equal weight.

    The heaviest first, each to the loop that has least (LPT: Graham, SIAM J. Appl. Math. 17, 1969).
    """
    if most is None or len(weights) <= most:
        return single_units(len(weights))
    loads, held = [0.0] * most, [list[int]() for _ in range(most)]
    for member in sorted(range(len(weights)), key=lambda place: (-weights[place], place)):
        least = min(range(most), key=lambda place: (loads[place], place))
        loads[least] += weights[member]
        held[least].append(member)
    return tuple(sorted(_in_turn(members) for members in held if members))


def _in_turn(members: Sequence[int]) -> Unit:
    return Unit(members=tuple(sorted(members)), kind="loop" if len(members) > 1 else "process")


def check_units(units: Sequence[Unit], count: int) -> None:
    """Refuse units that leave out one of `count` members, or have one twice."""
    held = sorted(member for unit in units for member in unit.members)
    if held != list(range(count)):
        raise AllocationError(
            f"units: hold members {', '.join(map(str, held)) or 'none'}; allowed: each of 0 to {count - 1} in exactly "
            "one unit"
        )
