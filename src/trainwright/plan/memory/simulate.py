"""Simulates a memory plan: the time and peak memory of its operations, and the first thing that is wrong with it.

Three resources work in order: the device computes one operation after another; copies to the host and copies back wait
in one queue each. Bytes are charged when an operation or a copy back starts and freed when an operation ends, or a copy
to the host has ended and nobody reads the device's value any more. Work waits for its inputs and, within a budget, for
bytes that are about to be freed. `simulation_kernel` has the compiled machine, which the search for copies asks too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import Link, Operation, OperationKind, rows_of
from trainwright.plan.memory.sizes import sizes_of

__all__ = ["LaneSpan", "PlanViolation", "Simulation", "simulate"]

_LANES = {OperationKind.OFFLOAD: "to host", OperationKind.PREFETCH: "to device"}
_ENDLESS = 1 << 60
"""Bytes of room where there is no budget."""


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """An operation on a lane: "compute", "to host" or "to device"."""

    lane: str
    operation: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True)
class PlanViolation:
    """Where a list fails (the place of an operation in it, from 0), and why."""

    operation: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """What a list of operations does; where `violation` is not None, only what was before it."""

    seconds: float
    """Infinite where it fails."""
    peak_bytes: int
    peak_operation: int
    """Place in the list of what was being done when the peak was first reached."""
    peak_owners: tuple[tuple[str, int], ...]
    """Who holds the bytes of the peak."""
    end_bytes: int
    """What is alive at the end."""
    spans: tuple[LaneSpan, ...] = field(repr=False)
    """In the order of the list; of what has ended."""
    releases: Mapping[int, tuple[float, int]] = field(repr=False)
    """Of each copy to the host, by its place: when its value left the device, and what was the last done by then."""
    violation: PlanViolation | None = None

    @property
    def fits(self) -> bool:
        """Whether the list is valid and, if a budget was given, stays within it."""
        return self.violation is None


def simulate(
    chain: Chain, operations: Sequence[Operation], *, budget_bytes: int | None = None, link: Link | None = None
) -> Simulation:
    """Run the operations; with a budget, work waits for bytes that copies free, and fails where none will.

    The budget is the whole of the device's bytes, those of `chain.fixed` and the input included.
    """
    # Late: it is compiled.
    from trainwright.plan.memory import simulation_kernel as kernel

    sizes, fixed = sizes_of(chain), chain.fixed_bytes
    room = _ENDLESS if budget_bytes is None else budget_bytes - fixed
    rates = Link.of(1.0).rates if link is None else link.rates
    place, impossible = _find_impossible(chain, operations, linked=link is not None)
    seconds, noted = kernel.run_rows(sizes, (room, rates), rows_of(operations), place, True)
    times, end, alive = noted[0][kernel.NOTES :].reshape(-1, 4), noted[1], noted[2][:, kernel.ALIVE_AT_PEAK]
    peak = end[kernel.PEAK :]
    failed, reason, detail = int(end[kernel.ROW]), kernel.FAILURES[end[kernel.FAILURE]], int(end[kernel.DETAIL])
    if impossible and failed == place:
        reason = f"{{operation}}: {impossible}"
    told = {"detail": detail, "value": _name_of(detail), "wanted": detail + fixed, "budget": room + fixed}
    operation = operations[failed] if failed < len(operations) else None
    # Who holds the bytes of the peak.
    parameters, temporary = int(sizes.later_gradients[peak[kernel.BEHIND]]), int(peak[kernel.TEMPORARY])
    used, values = int(peak[kernel.USED]), alive.tolist()
    owners = [
        *chain.fixed.items(),
        ("input", chain.input_bytes),
        *((_name_of(key), size) for key, size in enumerate(values) if size > 0),
        (f"temporaries of stage {operations[peak[kernel.ROW]].stage if operations else 0}", temporary),
        ("gradients of parameters", parameters),
        (f"gradient at stage {peak[kernel.GRADIENT]}", used - temporary - parameters - int(alive[alive > 0].sum())),
    ]
    return Simulation(
        seconds=seconds,
        peak_bytes=used + fixed,
        peak_operation=int(peak[kernel.ROW]),
        peak_owners=tuple((name, size) for name, size in owners if size),
        end_bytes=int(end[kernel.USED]) + fixed,
        spans=tuple(
            LaneSpan(_LANES.get(operations[at].kind, "compute"), at, begun, ended)
            for at, (begun, ended, *_) in enumerate(times.tolist())
            if not math.isnan(ended)
        ),
        releases={at: (gone, int(done)) for at, (*_, gone, done) in enumerate(times.tolist()) if not math.isnan(gone)},
        violation=PlanViolation(failed, reason.format(operation=operation, **told)) if reason else None,
    )


def _find_impossible(chain: Chain, operations: Sequence[Operation], *, linked: bool) -> tuple[int, str]:
    """Return the place of the first operation that no list can have, and why; the end if there is none."""
    for place, each in enumerate(operations):
        if not linked and each.kind in _LANES:
            return place, "there is no link to the host"
        if not 1 <= each.stage <= len(chain.steps):
            return place, f"there is no stage {each.stage}"
        if each.option > len(chain.steps[each.stage - 1].options):
            return place, f"stage {each.stage} has no option {each.option}"
    return len(operations), ""


def _name_of(key: int) -> str:
    """Return the name of a value by its key (see `copy_schedule`)."""
    return f"{'saved values' if key % 2 else 'output'} of stage {key // 2}"
