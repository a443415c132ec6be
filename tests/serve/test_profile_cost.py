"""Time tables and what follows from them: rows a second as a linear program, latencies by simulated arrivals."""

import dataclasses
import math

import numpy as np
import pytest
from allocation_for_tests import GB, devices, drawn_case, started
from benchmarks.serve.placement_oracles import InjectedCost
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from trainwright.errors import AllocationError, ServeConfigError
from trainwright.serve import Unit
from trainwright.serve.placement.objectives import P99, Throughput, objective_of
from trainwright.serve.placement.placement import Placement
from trainwright.serve.placement.profile_cost import ProfileCost
from trainwright.serve.placement.queueing_simulation import arrival_times, latencies
from trainwright.serve.placement.time_sharing import balance
from trainwright.serve.placement.time_tables import TimeTables
from trainwright.serve.placement.units import single_units


def by_highs(rates, capacity):
    """Return the same optimum by another solver."""
    count, units = rates.shape
    limits = np.zeros((units + count, count * units + 1))
    limits[:units, -1] = 1
    for device in range(count):
        for unit in range(units):
            limits[unit, device * units + unit] = -rates[device, unit]
            limits[units + device, device * units + unit] = 1
    goal = np.append(np.zeros(count * units), -1)
    return -linprog(goal, A_ub=limits, b_ub=np.concatenate([np.zeros(units), capacity])).fun


class TestBalance:
    @settings(max_examples=100)
    @given(seed=st.integers(0, 10**6), count=st.integers(1, 5), units=st.integers(1, 8), equal=st.booleans())
    def test_equals_another_solver(self, seed, count, units, equal):
        """Also with ties, on which a simplex method may turn in circles, and with units that have no instance."""
        draws = np.random.default_rng(seed)
        rates = np.round(np.exp(draws.normal(0, 2, (count, units))) * 10 + 1) * (draws.random((count, units)) < 0.7)
        rates = np.minimum(rates, 5) if equal else rates
        capacity = draws.choice([1.0, 0.5], count)
        found = balance(rates[None], capacity[None])[0]
        assert found == pytest.approx(by_highs(rates, capacity), rel=1e-7, abs=1e-9)

    def test_by_hand(self):
        """One device halves its time; a second one for the slow unit relieves it."""
        both = np.array([[[10.0, 10.0], [0.0, 0.0]], [[10.0, 10.0], [0.0, 4.0]]])
        # With the second device: 10 a = 10 (1 - a) + 4, so a = 0.7.
        assert balance(both, np.ones((2, 2))) == pytest.approx([5.0, 7.0])


class TestTables:
    def test_units(self):
        """A loop takes the sum of its members; other fused units only what was measured."""
        tables = TimeTables(
            batches=(1, 8),
            seconds={"cuda-model": np.array([[1.0, 2.0], [3.0, 5.0]])},
            fused={(Unit(members=(0, 1), kind="vmap"), "cuda-model"): np.array([1.5, 2.5])},
        )
        (device,) = devices(GB)
        assert tables.of_unit(Unit(members=(1,)), device).tolist() == [3.0, 5.0]
        assert tables.of_unit(Unit(members=(0, 1), kind="loop"), device).tolist() == [4.0, 7.0]
        assert tables.of_unit(Unit(members=(0, 1), kind="vmap"), device).tolist() == [1.5, 2.5]
        assert np.isnan(tables.of_unit(Unit(members=(0, 1), kind="streams"), device)).all()
        assert tables.least_seconds([device]) == 3.0
        again = TimeTables.from_json(tables.to_json())
        assert again.to_json() == tables.to_json()

    def test_refusals(self):
        with pytest.raises(AllocationError, match="ascending"):
            TimeTables(batches=(8, 1), seconds={})
        with pytest.raises(AllocationError, match="positive seconds"):
            TimeTables(batches=(1,), seconds={"x": np.array([[0.0]])})
        with pytest.raises(AllocationError, match="kinds are never mixed"):
            TimeTables(batches=(1,), seconds={"cpu": np.ones((1, 1))}).of_unit(Unit(members=(0,)), devices(GB)[0])


class TestThroughput:
    def test_contention_takes_time_of_crowded_devices(self):
        space, _ = drawn_case(0, count=1, members=2, batches=(8,))
        tables = TimeTables(batches=(8,), seconds={"m0": np.full((2, 1), 0.5)})
        placement = Placement(single_units(2), ((8, 8),))
        free = ProfileCost(devices=space.devices, tables=tables)
        slower = dataclasses.replace(tables, shared={"m0": np.array([[1.0], [0.8]])})
        crowded = ProfileCost(devices=space.devices, tables=slower)
        assert free.measure([placement])[0].value == pytest.approx(8.0)
        assert crowded.measure([placement])[0].value == pytest.approx(8.0 / 1.25)
        assert free.measure([placement])[0].per_unit == pytest.approx((16.0, 16.0))

    def test_many_at_once_is_one_by_one(self):
        """Whatever units neighbours in the list have."""
        space, cost = drawn_case(2, count=2, members=3, batches=(8, 32))
        single = started(space, 3)
        fused = Placement((Unit(members=(0, 1), kind="loop"), Unit(members=(2,))), ((8, 8), (0, 8)))
        listed = [single, fused, *space.neighbours(single)[:5], fused]
        assert cost.measure(listed) == [cost.measure([one])[0] for one in listed]

    def test_unknown_times_fail(self):
        (device,) = devices(GB)
        cost = ProfileCost(devices=(device,), tables=TimeTables(batches=(8,), seconds={"cuda-model": np.ones((2, 1))}))
        found = cost.measure([Placement((Unit(members=(0, 1), kind="vmap"),), ((8,),))])[0]
        assert found.value == -math.inf
        assert "no time is known" in found.failed


class TestLatencies:
    def test_one_server_in_line(self):
        """A device that takes 1 s a request, and batches what has waited."""
        times = latencies(np.array([0.0, 0.1, 0.2, 5.0]), 1, np.array([[1]]), np.array([[[1.0]]]), np.array([1]))
        assert times == pytest.approx([1.0, 1.9, 2.8, 1.0])
        joined = latencies(
            np.array([0.0, 0.1, 0.2, 5.0]), 1, np.array([[2]]), np.array([[[1.0, 1.2]]]), np.array([1, 2])
        )
        assert joined == pytest.approx([1.0, 2.1, 2.0, 1.0])

    def test_the_slowest_unit_answers_last(self):
        """Two units on a device take turns; on two devices they work at once."""
        arrivals, seconds = np.array([0.0]), np.array([[[1.0], [2.0]]])
        assert latencies(arrivals, 1, np.array([[1, 1]]), seconds, np.array([1])) == pytest.approx([3.0])
        apart = np.repeat(seconds, 2, axis=0)
        assert latencies(arrivals, 1, np.array([[1, 0], [0, 1]]), apart, np.array([1])) == pytest.approx([2.0])

    def test_large_requests_are_cut(self):
        found = latencies(np.array([0.0]), 5, np.array([[2]]), np.array([[[1.0, 1.5]]]), np.array([1, 2]))
        assert found == pytest.approx([4.0])  # 2 + 2 + 1 rows

    def test_mean_wait_is_that_of_theory(self):
        """Poisson arrivals, fixed service (M/D/1): the mean wait is load / (2 (1 - load)) services."""
        found = latencies(arrival_times(0.5, 40_000, 1), 1, np.array([[1]]), np.array([[[1.0]]]), np.array([1]))
        assert found.mean() == pytest.approx(1.5, rel=0.03)


class TestObjectives:
    def cost(self, objective, **settings):
        (device,) = devices(GB)
        tables = TimeTables(batches=(1, 8), seconds={"cuda-model": np.array([[0.010, 0.024]])})
        return ProfileCost(devices=(device,), tables=tables, objective=objective, **settings)

    def test_p99_grows_with_the_rate(self):
        placement = Placement(single_units(1), ((8,),))
        slow, fast = (self.cost(P99(rate)).measure([placement])[0].value for rate in (10, 200))
        assert slow == pytest.approx(-0.018, abs=0.009)
        assert fast < slow

    def test_throughput_within_a_latency(self):
        """Larger batches reach more at saturation; a strict limit of latency forbids them that."""
        placement = Placement(single_units(1), ((8,),))
        free = self.cost(Throughput()).measure([placement])[0].value
        loose = self.cost(Throughput(slo_ms=200)).measure([placement])[0].value
        strict = self.cost(Throughput(slo_ms=40)).measure([placement])[0].value
        assert free == pytest.approx(8 / 0.024)
        assert 0 < strict < loose <= free
        assert self.cost(Throughput(slo_ms=5)).measure([placement])[0].value == 0.0
        reached = self.cost(P99(strict)).measure([placement])[0].value
        assert reached >= -0.040
        # What cannot reach the floor says so with less.
        assert self.cost(Throughput(slo_ms=40)).measure([placement], floor=2 * strict)[0].value < 2 * strict

    def test_names(self):
        for text in ("throughput", "throughput@50", "p99@200"):
            assert objective_of(text).name == text
        assert objective_of("p99@200") == P99(200.0)

    @pytest.mark.parametrize("text", ["speed", "p99", "p99@", "p99@fast", "throughput@0", "p99@-1", "p99@nan"])
    def test_refusals(self, text):
        with pytest.raises(ServeConfigError, match=r"allowed|got"):
            objective_of(text)


def test_injected_noise_is_a_counter():
    """The n-th call of two equal costs says the same."""
    placement = Placement(single_units(1), ((1,),))
    one, two = (InjectedCost(value=lambda _: 10.0, noise=0.1, seed=3) for _ in range(2))
    first = one.measure([placement] * 3)
    assert first == two.measure([placement] * 3)
    assert len({each.value for each in first}) == 3
