"""Search: the best plan of every strategy, by bounds first and by the whole model for those that the bounds leave.

Shapes (degrees, micro-batch, chunks) are dropped by limits, then by a lower bound of memory; the others are looked at
in the order of a lower bound of time, until that exceeds the best plan of their strategy. Nothing that could win is
dropped, and the answer does not depend on the order of the candidates.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from trainwright.plan.candidates import LEVELS, MODES, Shapes, choices_of
from trainwright.plan.exposure import exposed_seconds
from trainwright.plan.mesh import AXES, RECOMPUTE, Floats, Ints, Mesh
from trainwright.plan.pricing import Pricer, Prices
from trainwright.plan.request import Request

__all__ = ["Found", "search"]

_FIRST_ROUND = 16
_BLOCK_CHOICES = ((False, 0), (False, 1), (False, 2), (True, 0), (True, 1), (True, 2))


@dataclass(slots=True)
class Found:
    """The best candidate of a strategy, or the one that wants least memory if none fits."""

    mode: str
    axes: tuple[str, ...]
    score: float = float("inf")
    exposed: float = 0.0
    prices: Prices | None = None
    row: int = 0
    """Of these prices."""
    order: tuple[int, ...] = ()
    least_bytes: float = float("inf")
    """Of the candidates that were priced."""
    priced: int = 0


@dataclass(slots=True)
class _Family:
    found: Found
    order: Ints
    bound: Floats
    at: int = 0
    waiting: list[tuple[float, Mesh, Prices]] = field(default_factory=list)


def search(pricer: Pricer, shapes: Shapes, request: Request) -> list[Found]:
    """Return what was found for every strategy that some shape allows."""
    mesh = shapes.mesh
    seconds, sizes = pricer.bounds(mesh)
    devices = mesh.devices
    divided = mesh.degrees > 1
    divided[:, AXES.index("data")] = False
    codes = divided @ (1 << np.arange(len(AXES)))
    families = []
    for mode in MODES:
        _, fits = choices_of(mesh, mode, request.cluster.devices_per_node)
        size = sizes[LEVELS[mode]]
        score = request.score(mesh, seconds, size)
        data = mesh.axis("data") > 1
        wanted = fits & ((data & (mode in request.allowed)) | (~data & (mode == "data")))
        for code in np.unique(codes[wanted]):
            for with_data in (False, True):
                rows = np.flatnonzero(wanted & (codes == code) & (data == with_data))
                if not len(rows):
                    continue
                axes = tuple(name for place, name in enumerate(AXES) if code >> place & 1)
                found = Found(mode=mode if with_data else "", axes=axes, least_bytes=float(size[rows].min()))
                rows = rows[size[rows] <= request.memory_bytes]
                order = rows[np.lexsort((rows, devices[rows], score[rows]))]
                families.append(_Family(found, order, score[order]))
    width = _FIRST_ROUND
    while any(each.at < len(each.order) for each in families):
        _round(pricer, mesh, families, request, width)
        width *= 4
    return [each.found for each in families]


def _round(pricer: Pricer, mesh: Mesh, families: list[_Family], request: Request, width: int) -> None:
    """Price the next shapes of every strategy, with all choices, in one go."""
    parts, owners = [], []
    for number, family in enumerate(families):
        rows = family.order[family.at : family.at + width]
        rows = rows[family.bound[family.at : family.at + width] <= family.found.score]
        family.at = family.at + width if len(rows) else len(family.order)
        if not len(rows):
            continue
        chosen, _ = choices_of(mesh.take(rows), family.found.mode or "data", request.cluster.devices_per_node)
        parts.append(chosen)
        owners.append(np.full(len(rows), number))
    if not parts:
        return
    base, owner = _joined(parts), np.concatenate(owners)
    choices = [
        (sequence, recompute)
        for sequence, recompute in _BLOCK_CHOICES
        if recompute != RECOMPUTE.index("selective") or pricer.has_attention
    ]
    meshes, owning = [], []
    for sequence, recompute in choices:
        rows = np.flatnonzero(base.axis("tensor") > 1) if sequence else np.arange(base.rows)
        some = base.take(rows)
        meshes.append(replace(some, sequence=np.full(len(rows), sequence), recompute=np.full(len(rows), recompute)))
        owning.append(owner[rows])
    every, owner = _joined(meshes), np.concatenate(owning)
    prices = pricer.price(every)
    total = request.score(every, prices.total, prices.memory.peak)
    for number, family in enumerate(families):
        rows = np.flatnonzero(owner == number)
        if len(rows):
            _settle(pricer, family.found, every, prices, bound=total, rows=rows, request=request)


def _settle(
    pricer: Pricer, found: Found, mesh: Mesh, prices: Prices, *, bound: Floats, rows: Ints, request: Request
) -> None:
    """Follow the event list of candidates in the order of their bounds until the next bound is no better."""
    found.priced += len(rows)
    found.least_bytes = min(found.least_bytes, float(prices.memory.peak[rows].min()))
    rows = rows[prices.memory.peak[rows] <= request.memory_bytes]
    keys = [mesh.degrees[rows, place] for place in range(len(AXES))]
    devices = mesh.degrees[rows].prod(axis=1)
    order = rows[np.lexsort((mesh.recompute[rows], mesh.micro[rows], *keys, devices, bound[rows]))]
    for row in order:
        if bound[row] > found.score:
            break
        exposed = exposed_seconds(prices.stage_times(row), pricer.assumptions.slowdown)
        exposed = max(exposed, float(prices.exposed[row]))
        seconds = float(prices.total[row] - prices.exposed[row]) + exposed
        size = prices.memory.peak[row : row + 1]
        score = float(request.score(mesh.take(np.array([row])), np.array([seconds]), size)[0])
        if score < found.score or (score == found.score and _order(prices, row) < found.order):
            found.score, found.exposed, found.prices, found.row = score, exposed, prices, int(row)
            found.order = _order(prices, row)


def _order(prices: Prices, row: int) -> tuple[int, ...]:
    """Return the order among equals: fewer devices, then simpler choices."""
    mesh = prices.mesh
    return (
        int(mesh.degrees[row].prod()),
        int(mesh.recompute[row]),
        int(mesh.sequence[row]),
        int(mesh.chunks[row]),
        *(int(each) for each in mesh.degrees[row]),
        -int(mesh.micro[row]),
    )


def _joined(parts: list[Mesh]) -> Mesh:
    names = ("degrees", "micro", "zero", "shard", "sequence", "recompute", "schedule", "chunks")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Mesh(batch=parts[0].batch, **columns)
