"""The search: neighbours, bounded greedy beside brute force and the integer program, and what noise must not do."""

import math

import numpy as np
import pytest
from allocation_for_tests import GB, devices, drawn_case, started
from benchmarks.serve.placement_oracles import InjectedCost, brute_force, integer_program, space_size
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.errors import AllocationError
from trainwright.serve import Device, Unit
from trainwright.serve.placement.cost import Measurement
from trainwright.serve.placement.greedy import BoundedGreedy, compared
from trainwright.serve.placement.memory_model import MemberFootprint, MemoryModel
from trainwright.serve.placement.placement import Placement
from trainwright.serve.placement.placement_space import PlacementSpace
from trainwright.serve.placement.relaxation import place_by_relaxation, upper_bound
from trainwright.serve.placement.units import single_units


def roomy(count=2, members=2, batches=(1, 8), fusable=(), **settings):
    """Return a space in which everything fits."""
    memory = MemoryModel(footprints=(MemberFootprint(weight_bytes=1, row_bytes=1),) * members)
    return PlacementSpace(
        devices=devices(*[100 * GB] * count), batches=batches, memory=memory, fusable=fusable, **settings
    )


class TestMemory:
    @settings(max_examples=80)
    @given(data=st.data())
    def test_never_says_fits_when_it_does_not(self, data):
        """Against a sum made by hand: contexts of processes, and weights and peaks of every member in them."""
        members = data.draw(st.integers(1, 4))
        sizes = st.integers(0, 10**6)
        prints = [
            MemberFootprint(weight_bytes=data.draw(sizes), row_bytes=data.draw(sizes), fixed_bytes=data.draw(sizes))
            for _ in range(members)
        ]
        cut = data.draw(st.integers(1, members))
        units = [Unit(members=tuple(range(cut)), kind="loop" if cut > 1 else "process")]
        units += [Unit(members=(member,)) for member in range(cut, members)]
        capacity, kind = data.draw(st.integers(0, 10**8)), data.draw(st.sampled_from(["cpu", "cuda"]))
        device = Device(name="d", kind=kind, capacity_bytes=capacity, simulated=True)
        row = [data.draw(st.sampled_from([0, 1, 2, 64])) for _ in units]
        context = {"cpu": 1000, "cuda": 5000}
        model = MemoryModel(footprints=tuple(prints), context_bytes=context)
        total = 0
        for unit, batch in zip(units, row, strict=True):
            if batch:
                total += context[kind]
                for member in unit.members:
                    one = prints[member]
                    total += one.weight_bytes + one.fixed_bytes + batch * one.row_bytes
        assert model.fits([device], units, [row]) == (total <= math.floor(0.95 * capacity))
        space = PlacementSpace(devices=(device,), batches=(1, 2, 64), memory=model)
        assert space.fits(Placement(tuple(units), (tuple(row),))) == (total <= math.floor(0.95 * capacity))


class TestNeighbours:
    @settings(max_examples=25)
    @given(seed=st.integers(0, 10**6))
    def test_all_fit_and_leave_no_unit_out(self, seed):
        space, _ = drawn_case(seed, count=3, members=4, batches=(4, 32))
        placement = started(space, 4)
        for other in (*space.neighbours(placement), space.kicked(placement, np.random.default_rng(seed))):
            assert space.fits(other)
            assert all(any(row[unit] for row in other.matrix) for unit in range(4))
        around = space.neighbours(placement)
        assert len(set(around)) == len(around)
        assert placement not in around

    def test_single_changes_by_hand(self):
        """Two devices, one unit: another batch, a second instance, a move."""
        space = roomy(members=1, moves=("batch", "place", "move"))
        found = {other.matrix for other in space.neighbours(Placement(single_units(1), ((8,), (0,))))}
        assert found == {((1,), (0,)), ((8,), (1,)), ((8,), (8,)), ((0,), (8,))}
        both = {other.matrix for other in space.neighbours(Placement(single_units(1), ((8,), (1,))))}
        assert both == {((1,), (1,)), ((8,), (8,)), ((0,), (1,)), ((8,), (0,))}

    def test_swaps(self):
        space = roomy(moves=("swap",))
        (found,) = space.neighbours(Placement(single_units(2), ((8, 0), (0, 1))))
        assert found.matrix == ((0, 1), (8, 0))

    def test_merge_and_split_undo_each_other(self):
        """Instances stay where they were; columns come in the order of members."""
        fused = Unit(members=(0, 2), kind="vmap")
        space = roomy(members=3, fusable=(fused,), moves=("merge", "split"))
        (merged,) = space.neighbours(Placement(single_units(3), ((8, 1, 1), (0, 0, 8))))
        assert merged == Placement((fused, Unit(members=(1,))), ((8, 1), (8, 0)))
        (split,) = space.neighbours(merged)
        assert split == Placement(single_units(3), ((8, 1, 8), (8, 0, 8)))

    def test_a_sample_is_a_part(self):
        space = roomy(count=3, members=3)
        placement = started(space, 3)
        whole = space.neighbours(placement)
        some = space.neighbours(placement, 5, np.random.default_rng(0))
        assert len(some) == 5
        assert set(some) < set(whole)


class TestOracles:
    def test_sizes_of_spaces(self):
        assert space_size(2, 2, 3) == 225
        assert space_size(3, 3, 2) == 17_576
        assert space_size(4, 12, 5) == pytest.approx(2.2e37, rel=0.02)

    @pytest.mark.parametrize("seed", range(12))
    def test_integer_program_equals_brute_force(self, seed):
        """Where time is shared without loss both maximise one function; the solver's own figures have its tolerance."""
        space, cost = drawn_case(seed, count=2, members=2, batches=(8, 32, 128), contention=False)
        _, best = brute_force(single_units(2), space, cost)
        solved = integer_program(single_units(2), space, cost)
        assert solved.value == pytest.approx(best, rel=1e-5)
        assert solved.bound == pytest.approx(best, rel=1e-5)
        assert space.fits(solved.placement)
        assert cost.measure([solved.placement])[0].value == pytest.approx(best, rel=1e-9)
        assert upper_bound(single_units(2), space, cost) >= best * (1 - 1e-9)

    def test_one_device(self):
        """There the bound is 1 / sum(1 / r), and the relaxation reaches it."""
        space, cost = drawn_case(3, count=1, members=3, batches=(8, 64), contention=False)
        rates = np.array([8, 64]) / cost.unit_seconds(single_units(3))[0]
        expected = 1 / (1 / rates.max(axis=1)).sum()
        assert upper_bound(single_units(3), space, cost) == pytest.approx(expected)
        found = place_by_relaxation(single_units(3), space, cost)
        assert space.fits(found)

    def test_refusals(self):
        space, cost = drawn_case(0, count=4, members=12, batches=(8, 16, 32, 64, 128))
        with pytest.raises(AllocationError, match=r"2\.22e\+37 matrices"):
            brute_force(single_units(12), space, cost)
        tight = PlacementSpace(devices=devices(10), batches=(1,), memory=roomy().memory)
        with pytest.raises(AllocationError, match="none of 1 matrices fits"):
            brute_force(single_units(1), tight, InjectedCost(value=lambda _: 1.0))


class TestGreedy:
    @pytest.mark.parametrize("seed", range(30))
    def test_equals_brute_force_on_225(self, seed):
        space, cost = drawn_case(seed, count=2, members=2, batches=(8, 32, 128), contention=seed % 2 == 0)
        found = BoundedGreedy(seed=seed).search(started(space, 2), space, cost)
        _, best = brute_force(single_units(2), space, cost)
        assert found.value == pytest.approx(best, rel=1e-9)
        assert found.start_value <= found.value

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(8))
    def test_equals_brute_force_on_17576(self, seed):
        space, cost = drawn_case(seed, count=3, members=3, batches=(8, 64), contention=seed % 2 == 0)
        found = BoundedGreedy(seed=seed).search(started(space, 3), space, cost)
        _, best = brute_force(single_units(3), space, cost)
        assert found.value >= best * 0.97

    def test_the_same_seed_gives_the_same_placement(self):
        space, cost = drawn_case(1, count=4, members=6, batches=(8, 64))
        search = BoundedGreedy(seed=4, kicks=2)
        assert search.search(started(space, 6), space, cost) == search.search(started(space, 6), space, cost)

    def test_noise_alone_moves_nothing(self):
        """All placements are worth the same: in at least 95 of 100 seeds no step is taken."""
        moved = 0
        for seed in range(100):
            space = roomy()
            cost = InjectedCost(value=lambda _: 100.0, noise=0.05, seed=seed)
            moved += BoundedGreedy(seed=seed).search(started(space, 2), space, cost).steps > 0
        assert moved <= 5

    def test_a_real_gain_is_found_through_noise(self):
        """Twice the batch is worth twice as much, measured with 3 % noise."""
        space = roomy(batches=(1, 2, 4))
        cost = InjectedCost(value=lambda one: float(sum(map(sum, one.matrix))), noise=0.03, seed=1)
        found = BoundedGreedy(seed=1).search(started(space, 2), space, cost)
        assert found.placement.matrix == ((4, 4), (4, 4))

    def test_failures_are_avoided_and_not_tried_again(self):
        """What ran out of memory once is never measured a second time."""
        space = roomy(batches=(1, 2, 4))
        failed = []

        def value(placement):
            if max(map(max, placement.matrix)) > 2:
                failed.append(placement)
                return -math.inf
            return float(sum(map(sum, placement.matrix)))

        found = BoundedGreedy(seed=1).search(started(space, 2), space, InjectedCost(value=value))
        assert found.placement.matrix == ((2, 2), (2, 2))
        assert len(failed) == len(set(failed)) > 0

    def test_starts_that_fail_are_left(self):
        """A start that does not run is replaced by anything that does."""
        space = roomy()
        start = started(space, 2)
        cost = InjectedCost(value=lambda one: -math.inf if one == start else 1.0, noise=0.01)
        found = BoundedGreedy(seed=0).search(start, space, cost)
        assert found.placement != start
        assert found.start_value == -math.inf

    def test_bounds(self):
        """A search says why it ended."""
        space, cost = drawn_case(1, count=4, members=6, batches=(8, 64))
        start = started(space, 6)
        assert BoundedGreedy(max_steps=1, kicks=0).search(start, space, cost).stopped == "bound reached"
        assert BoundedGreedy(max_tried=1).search(start, space, cost).stopped == "bound reached"
        assert BoundedGreedy(kicks=0).search(start, space, cost).stopped == "local optimum"
        ticks = iter(range(100))
        late = BoundedGreedy(max_seconds=1.5).search(start, space, cost, clock=lambda: next(ticks))
        assert late.stopped == "time limit"

    def test_measured_in_turns(self):
        """Medians of A/B/A/B; one failure of several is a failure."""

        class PlacementCost:
            noisy = True

            def __init__(self):
                self.told = iter([1.0, 5.0, 3.0, 7.0, 2.0, -math.inf])
                self.asked = []

            def measure(self, placements, floor=-math.inf):
                self.asked += placements
                found = [next(self.told) for _ in placements]
                return [Measurement(value=v, failed="crash" if v == -math.inf else None) for v in found]

        a, b = Placement(single_units(1), ((1,),)), Placement(single_units(1), ((2,),))
        cost = PlacementCost()
        old, new = compared(cost, a, b, 3)
        assert cost.asked == [a, b] * 3
        assert old.value == 2.0
        assert (new.value, new.failed) == (-math.inf, "crash")
