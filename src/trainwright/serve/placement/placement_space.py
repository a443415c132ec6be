"""The search space of placements: what fits, and the neighbours of a placement.

A neighbour changes one batch size, moves an instance, swaps two, or merges or splits units. Single changes alone cannot
take an instance from a full device to another, hence moves and swaps.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from trainwright.serve.placement.devices import Device
from trainwright.serve.placement.memory_model import MemoryModel
from trainwright.serve.placement.placement import Placement
from trainwright.serve.placement.units import Unit

__all__ = ["MOVES", "Move", "PlacementSpace"]

Move = Literal["batch", "place", "move", "swap", "merge", "split"]
MOVES: tuple[Move, ...] = ("batch", "place", "move", "swap", "merge", "split")
_KICKED = 3  # units at most that a kick takes off
_Entries = tuple[tuple[int, int, int], ...]  # (device, unit, batch) that change


@dataclass(frozen=True, kw_only=True)
class PlacementSpace:
    """The placements of an ensemble on devices: the batch sizes allowed, what fits, and what may be fused."""

    devices: tuple[Device, ...]
    batches: tuple[int, ...]
    memory: MemoryModel
    fusable: tuple[Unit, ...] = ()  # units of several members that merging may make
    loops: bool = False  # whether any two units may also be merged into one that computes their members in turn
    moves: tuple[Move, ...] = MOVES
    fixed: frozenset[tuple[int, int]] = frozenset()  # (device, unit) entries that stay as they are
    crowded: bool = False  # whether a group of cores may have more instances than cores
    _bytes: dict[Unit, dict[tuple[int, int], int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def free(self) -> tuple[int, ...]:
        """Bytes that instances may take, by device."""
        return tuple(map(self.memory.free, self.devices))

    @cached_property
    def room(self) -> tuple[int | None, ...]:
        """How many instances there may be, by device; None for any number."""
        return tuple(None if self.crowded else device.room for device in self.devices)

    def needed(self, unit: Unit, device: int, batch: int) -> int:
        """Return the bytes of an instance; 0 for batch 0."""
        if not batch:
            return 0
        known = self._bytes.setdefault(unit, {})
        if (device, batch) not in known:
            known[device, batch] = self.memory.needed(unit, self.devices[device], batch)
        return known[device, batch]

    def loads(self, placement: Placement) -> list[int]:
        """Return the bytes that a placement takes, by device."""
        return [
            sum(self.needed(unit, device, batch) for unit, batch in zip(placement.units, row, strict=True) if batch)
            for device, row in enumerate(placement.matrix)
        ]

    def fits(self, placement: Placement) -> bool:
        """Say whether every device holds what is on it, and has cores for it."""
        counts = (sum(batch > 0 for batch in row) for row in placement.matrix)
        return all(load <= free for load, free in zip(self.loads(placement), self.free, strict=True)) and all(
            room is None or count <= room for count, room in zip(counts, self.room, strict=True)
        )

    def has_core(self, row: Sequence[int], device: int) -> bool:
        """Say whether a device with such a row of batch sizes has a core for one instance more."""
        room = self.room[device]
        return room is None or sum(batch > 0 for batch in row) < room

    def neighbours(
        self, placement: Placement, most: int | None = None, draws: np.random.Generator | None = None
    ) -> list[Placement]:
        """Return the neighbours that fit and leave no unit without an instance, each once, in a fixed order.

        With `most` and a generator, so many of them at most, in the order of a random permutation.
        """
        # Bytes of the placement are counted once; each change only adds or subtracts its entries.
        loads = self.loads(placement)
        changes: list[_Entries | Placement] = [
            entries
            for entries in self._entry_changes(placement.matrix)
            if self.fixed.isdisjoint((device, unit) for device, unit, _ in entries)
        ]
        # Merging and splitting change the columns, so they are whole placements.
        changes += [*self._merge_units(placement), *self._split_units(placement)]
        # A permutation, not a sample: changes that do not fit are replaced by the next ones.
        if most is not None and draws is not None and len(changes) > most:
            changes = [changes[place] for place in draws.permutation(len(changes))]
        found: dict[Placement, None] = {}
        for change in changes:
            if isinstance(change, Placement):
                if self.fits(change):
                    found[change] = None
            elif self._change_fits(placement, loads, change):
                found[placement.with_entries(*change)] = None
            if most is not None and len(found) >= most:
                break
        return list(found)

    def kicked(self, placement: Placement, draws: np.random.Generator) -> Placement:
        """Return the placement with one to three units taken off everywhere, each put back once, anywhere it fits."""
        count = 1 + int(draws.integers(min(_KICKED, len(placement.units))))
        chosen = [int(unit) for unit in draws.permutation(len(placement.units))[:count]]
        devices = range(len(self.devices))
        bare = placement.with_entries(*((device, unit, 0) for device in devices for unit in chosen))
        for unit in chosen:
            held, loads = placement.units[unit], self.loads(bare)
            # Every device and batch that still fits is equally likely.
            places = [
                (device, unit, batch)
                for device in devices
                for batch in self.batches
                if loads[device] + self.needed(held, device, batch) <= self.free[device]
                and self.has_core(bare.matrix[device], device)
            ]
            if not places:
                return placement
            bare = bare.with_entries(places[int(draws.integers(len(places)))])
        return bare

    def _change_fits(self, placement: Placement, loads: Sequence[int], entries: _Entries) -> bool:
        after = {device: loads[device] for device, _, _ in entries}
        for device, unit, batch in entries:
            held = placement.units[unit]
            after[device] += self.needed(held, device, batch)
            after[device] -= self.needed(held, device, placement.matrix[device][unit])
        return all(load <= self.free[device] for device, load in after.items()) and self._has_cores(placement, entries)

    def _has_cores(self, placement: Placement, entries: _Entries) -> bool:
        # A change may free a core on one device and take one on another.
        more: dict[int, int] = {}
        for device, unit, batch in entries:
            more[device] = more.get(device, 0) + (batch > 0) - (placement.matrix[device][unit] > 0)
        for device, added in more.items():
            room = self.room[device]
            if room is not None and added > 0 and sum(map(bool, placement.matrix[device])) + added > room:
                return False
        return True

    def _entry_changes(self, matrix: Sequence[Sequence[int]]) -> Iterator[_Entries]:
        devices, units = range(len(matrix)), range(len(matrix[0]))
        held = [[device for device in devices if matrix[device][unit]] for unit in units]
        for unit in units:
            for device in devices:
                now = matrix[device][unit]
                if "batch" in self.moves and now:
                    yield from (((device, unit, batch),) for batch in self.batches if batch != now)
                if "place" in self.moves and not now:
                    yield from (((device, unit, batch),) for batch in self.batches)
                if "place" in self.moves and now and len(held[unit]) > 1:
                    yield ((device, unit, 0),)
                if "move" in self.moves and now:
                    free = [other for other in devices if not matrix[other][unit]]
                    yield from (((device, unit, 0), (other, unit, now)) for other in free)
        if "swap" in self.moves:
            yield from self._instance_swaps(matrix, held)

    def _instance_swaps(self, matrix: Sequence[Sequence[int]], held: Sequence[Sequence[int]]) -> Iterator[_Entries]:
        for first in range(len(held)):
            for second in range(first + 1, len(held)):
                for a in held[first]:
                    for b in held[second]:
                        if a != b and not matrix[b][first] and not matrix[a][second]:
                            x, y = matrix[a][first], matrix[b][second]
                            yield (a, first, 0), (b, first, x), (b, second, 0), (a, second, y)

    def _merge_units(self, placement: Placement) -> Iterator[Placement]:
        """Yield two units made one, of a kind that is allowed, wherever either ran, with the larger batch."""
        if "merge" not in self.moves:
            return
        units = placement.units
        for unit in (*self.fusable, *(_pair_loops(units) if self.loops else ())):
            parts = [place for place, held in enumerate(units) if set(held.members) <= set(unit.members)]
            if len(parts) < 2 or sum(len(units[place].members) for place in parts) != len(unit.members):
                continue
            kept = [place for place in range(len(units)) if place not in parts]
            rows = tuple(
                (*(row[place] for place in kept), max(row[place] for place in parts)) for row in placement.matrix
            )
            yield _order_columns((*(units[place] for place in kept), unit), rows)

    def _split_units(self, placement: Placement) -> Iterator[Placement]:
        """Yield a fused unit taken apart into its members, each where it ran."""
        if "split" not in self.moves:
            return
        for place, unit in enumerate(placement.units):
            if len(unit.members) < 2:
                continue
            kept = [other for other in range(len(placement.units)) if other != place]
            singles = tuple(Unit(members=(member,)) for member in unit.members)
            rows = tuple((*(row[other] for other in kept), *(row[place],) * len(singles)) for row in placement.matrix)
            yield _order_columns((*(placement.units[other] for other in kept), *singles), rows)


def _pair_loops(units: Sequence[Unit]) -> Iterator[Unit]:
    """Yield the loop of any two units that run their members in turn."""
    plain = [unit for unit in units if unit.kind in {"process", "loop"}]
    for first, second in itertools.combinations(plain, 2):
        yield Unit(members=tuple(sorted((*first.members, *second.members))), kind="loop")


def _order_columns(units: tuple[Unit, ...], rows: tuple[tuple[int, ...], ...]) -> Placement:
    """Return the placement with its columns in the order of the members, so that equal ones are equal."""
    order = sorted(range(len(units)), key=lambda place: units[place])
    return Placement(
        tuple(units[place] for place in order), tuple(tuple(row[place] for place in order) for row in rows)
    )
