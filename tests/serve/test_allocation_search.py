"""The placement search: memory, the integer program against brute force, and tables of times."""

import dataclasses
import math

import numpy as np
import pytest
from allocation_for_tests import GB, devices, drawn_problem, single_units
from benchmarks.serve.placement_oracles import brute_force, fits, rates_of, space_size
from benchmarks.serve.time_sharing import balance
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from trainwright.errors import AllocationError
from trainwright.serve import TimeTables
from trainwright.serve.placement.devices import Device
from trainwright.serve.placement.integer_program import PlacementProblem
from trainwright.serve.placement.units import MemberFootprint, MemoryModel, Unit


def roomy(seconds, *, batches=(1, 8), **settings):
    """Return a problem in which everything fits; `seconds` [devices, members, batches]."""
    count, members, _ = np.shape(seconds)
    memory = MemoryModel(footprints=(MemberFootprint(weight_bytes=1, row_bytes=1),) * members)
    return PlacementProblem(
        devices=devices(*[100 * GB] * count),
        units=single_units(members),
        batches=batches,
        seconds=np.array(seconds, dtype=float),
        memory=memory,
        **settings,
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
        units = [Unit(members=tuple(range(cut))), *(Unit(members=(member,)) for member in range(cut, members))]
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
        assert fits(model, [device], units, [row]) == (total <= math.floor(0.95 * capacity))


class TestOracle:
    @settings(max_examples=100)
    @given(seed=st.integers(0, 10**6), count=st.integers(1, 5), units=st.integers(1, 8))
    def test_time_sharing_equals_highs(self, seed, count, units):
        """The simplex method by which the oracle values placements has the optimum of another solver."""
        draws = np.random.default_rng(seed)
        rates = draws.uniform(0.1, 100, (count, units)) * (draws.uniform(size=(count, units)) < 0.7)
        limits = np.zeros((units + count, count * units + 1))
        limits[:units, -1] = 1
        for device in range(count):
            for unit in range(units):
                limits[unit, device * units + unit] = -rates[device, unit]
                limits[units + device, device * units + unit] = 1
        goal = np.append(np.zeros(count * units), -1)
        most = np.repeat([0.0, 1.0], [units, count])
        expected = -linprog(goal, A_ub=limits, b_ub=most).fun
        assert balance(rates[None], np.ones((1, count)))[0] == pytest.approx(expected, rel=1e-6, abs=1e-9)

    def test_sizes_of_spaces(self):
        assert space_size(2, 2, 3) == 225
        assert space_size(3, 3, 2) == 17_576
        with pytest.raises(AllocationError, match=r"2\.22e\+37 matrices"):
            brute_force(drawn_problem(0, count=4, members=12, batches=(8, 16, 32, 64, 128)))


class TestIntegerProgram:
    @pytest.mark.parametrize(
        ("seed", "count", "batches"),
        [*((seed, 2, (8, 32, 128)) for seed in range(30)), *((seed, 3, (8, 64)) for seed in range(4))],
    )
    def test_equals_brute_force(self, seed, count, batches):
        """On 225 and 17,576 matrices, of which some do not fit; its bound is above, and its matrix fits."""
        problem = drawn_problem(seed, count=count, members=count, batches=batches)
        _, best = brute_force(problem)
        solution = problem.solve()
        assert solution.value == pytest.approx(best, rel=2e-4)
        assert solution.bound >= best * (1 - 1e-6)
        assert fits(problem.memory, problem.devices, problem.units, solution.matrix)
        assert rates_of(problem, [solution.matrix])[0] == pytest.approx(solution.value, rel=1e-5)
        assert problem.solve() == solution, "equal problems have equal answers"

    def test_one_device(self):
        """There the rows a second are 1 / sum(1 / r)."""
        problem = drawn_problem(3, count=1, members=3, batches=(8, 64))
        rates = np.array([8, 64]) / problem.seconds[0]
        assert problem.solve().value == pytest.approx(1 / (1 / rates.max(axis=1)).sum(), rel=2e-4)

    def test_nothing_fits(self):
        tight = dataclasses.replace(roomy([[[1, 2]]]), devices=devices(10))
        assert tight.solve() is None
        with pytest.raises(AllocationError, match="none of 2 matrices fits"):
            brute_force(tight)

    def test_cores_limit_the_instances(self):
        """Three members do not fit onto two cores as processes of their own."""
        group = Device(name="cpu:0-1", kind="cpu", cores=(0, 1), capacity_bytes=100 * GB)
        problem = dataclasses.replace(roomy([[[1, 2]] * 3]), devices=(group,))
        assert problem.solve() is None

    def test_without_a_time(self):
        """What is not a number cannot run, and is worth 0."""
        nan = math.nan
        problem = roomy([[[1, nan], [1, 2]]])
        assert problem.solve().matrix == ((1, 8),)
        assert rates_of(problem, [((8, 8),)])[0] == 0.0
        assert roomy([[[nan, nan]]]).solve() is None


class TestTables:
    def test_members_in_turn(self):
        """Several in one process take the sum of their times."""
        tables = TimeTables(batches=(1, 8), seconds={"cuda-model": np.array([[1.0, 2.0], [3.0, 5.0]])})
        found = tables.of_units([Unit(members=(1,)), Unit(members=(0, 1))], devices(GB))
        assert found.tolist() == [[[3.0, 5.0], [4.0, 7.0]]]
        with pytest.raises(AllocationError, match="has no times for cpu/0"):
            tables.of_units([Unit(members=(0,))], devices(GB, kind="cpu"))

    @pytest.mark.parametrize(
        ("batches", "seconds"), [((8, 1), [[1, 2]]), ((1,), [[1, 2]]), ((1, 8), [[1, 0]]), ((), [[]]), ((0,), [[1]])]
    )
    def test_refusals(self, batches, seconds):
        with pytest.raises(AllocationError, match="TimeTables"):
            TimeTables(batches=batches, seconds={"cpu": np.array(seconds, dtype=float)})
