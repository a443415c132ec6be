"""Seconds of an iteration from its parts: hand-computed terms, bounds, and constants that a fit brings back."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.plan.fit import FitConstant, fit_constants
from benchmarks.plan.fit_iteration import Exchange, Iteration, Machine, iteration_terms
from hypothesis import given
from hypothesis import strategies as st

from trainwright.cluster import Cluster, NetworkLevel
from trainwright.errors import InputError

NODE = NetworkLevel(name="node", devices=4, alpha=1e-5, bandwidth=50e9)
NETWORK = NetworkLevel(name="network", devices=4096, alpha=4e-5, bandwidth=10e9, links_per_node=2)
HOST = NetworkLevel(name="host", devices=4, alpha=1e-3, bandwidth=2e9)
MACHINE = Machine(cluster=Cluster(1024, 4, tiers=(NODE, NETWORK)), algorithms=frozenset({"ring", "tree"}), host=HOST)


def terms(iteration, **changes):
    """Return the terms of one iteration as numbers."""
    found = iteration_terms(replace(MACHINE, **changes), [iteration])
    return {name: float(getattr(found, name)[0]) for name in found._fields} | {"total": float(found.total[0])}


class TestTerms:
    """Each part against its formula."""

    def test_one_device(self):
        """Samples times seconds of a sample, nothing else; the framework's constant is for more than one device."""
        alone = Iteration(devices=1, samples=64, whole_seconds=3e-3)
        assert terms(alone, overhead_seconds=1.0)["total"] == pytest.approx(64 * 3e-3)
        assert terms(replace(alone, devices=2), overhead_seconds=1.0)["total"] == pytest.approx(1 + 64 * 3e-3)

    def test_divided_layers(self):
        """Divided kinds take f (c + (1 - c) / p), others f; nothing known of a kind means c = 0."""
        shared = Iteration(devices=4, parts=4, samples=8, whole_seconds=1.0, divided_seconds={"conv": 2.0, "pool": 4.0})
        assert terms(shared, whole={"conv": 0.5})["compute"] == pytest.approx(8 * (1 + 2 * (0.5 + 0.5 / 4) + 4 / 4))

    def test_exchanges(self):
        """A ring between devices, and a staged one through host memory; counts multiply."""
        gather = Exchange(operation="all_gather", ranks=4, bytes=8e6, count=3)
        fast = terms(Iteration(devices=4, samples=1, exchanges=(gather,)))["exchange"]
        slow = terms(Iteration(devices=4, samples=1, exchanges=(replace(gather, staged=True),)))["exchange"]
        assert fast == pytest.approx(3 * 3 * (1e-5 + 2e6 / 50e9))
        assert slow == pytest.approx(3 * 3 * (1e-3 + 2e6 / 2e9))

    def test_a_library_without_hierarchical_sums(self):
        """What the library does not know is not taken, though it were faster."""
        whole = Iteration(devices=64, samples=1, exchanges=(Exchange(operation="all_reduce", ranks=64, bytes=1e9),))
        flat = terms(whole)["exchange"]
        assert flat == pytest.approx(2 * 63 * (4e-5 + 1e9 / 64 / 10e9))
        assert terms(whole, algorithms=frozenset({"ring", "tree", "hierarchical"}))["exchange"] < flat

    def test_input(self):
        """Reading beside computation counts by what it takes longer; a node's processes share its rate."""
        run = Iteration(devices=4, samples=100, whole_seconds=1e-3)
        assert terms(run, decode_seconds=5e-4)["input"] == 0
        assert terms(run, decode_seconds=3e-3)["input"] == pytest.approx(0.3 - 0.1)
        assert terms(run, decode_seconds=3e-3, node_rate=1000.0)["input"] == pytest.approx(100 * 4 / 1000 - 0.1)

    def test_the_slowest_node(self):
        """Nodes that read independently wait for the slowest: sqrt(2 ln n) deviations above the mean."""
        run = Iteration(devices=64, samples=100)
        assert terms(run, decode_seconds=1e-3, spread=0.2)["input"] == pytest.approx(
            0.1 * (1 + 0.2 * np.sqrt(2 * np.log(16)))
        )

    def test_one_reader_hands_on(self):
        """One process of the group decodes, and the batch goes to the others where computation does not hide it."""
        run = Iteration(devices=4, parts=4, samples=100, sample_bytes=1e6, handed_on=True)
        found = terms(run, decode_seconds=1e-3, node_rate=1000.0, handing_seconds=1e-9)
        assert found["handing"] == pytest.approx(0.1)
        assert found["input"] == 0


@given(
    devices=st.sampled_from((1, 2, 4, 8, 64, 1024)),
    size=st.floats(1.0, 1e9),
    seconds=st.floats(1e-5, 1.0),
    decode=st.floats(0.0, 0.1),
)
def test_terms_add_up_and_grow(devices, size, seconds, decode):
    """The total is the sum, no term is negative, and it never falls where bandwidth falls or reading takes longer."""
    exchange = Exchange(operation="all_reduce", ranks=devices, bytes=size)
    run = Iteration(devices=devices, samples=4, whole_seconds=seconds, exchanges=(exchange,))
    found = terms(run, decode_seconds=decode)
    assert found["total"] == pytest.approx(sum(value for name, value in found.items() if name != "total"))
    assert min(found.values()) >= 0
    slower = Cluster(1024, 4, tiers=(replace(NODE, bandwidth=25e9), replace(NETWORK, bandwidth=5e9)))
    least = found["total"] * (1 - 1e-12)  # sums of other terms round otherwise
    assert terms(run, decode_seconds=decode, cluster=slower)["total"] >= least
    assert terms(run, decode_seconds=2 * decode)["total"] >= least


def test_a_fit_brings_the_machine_back():
    """Iterations on 1 to 64 devices, timed on a known machine, give its network and its reading rate."""
    runs = [
        Iteration(
            devices=devices,
            samples=32,
            whole_seconds=seconds,
            exchanges=(Exchange(operation="all_reduce", ranks=devices, bytes=size),) if devices > 1 else (),
        )
        for devices in (1, 2, 4, 8, 16, 64)
        for seconds, size in ((1e-2, 5e8), (1e-4, 1e8))
    ]

    def machine(values):
        network = replace(NETWORK, bandwidth=1 / values["beta"])
        cluster = Cluster(1024, 4, tiers=(NODE, network))
        return replace(MACHINE, cluster=cluster, decode_seconds=values["decode"])

    def predict(values):
        return iteration_terms(machine(values), runs).total

    truth = {"beta": 1.4e-10, "decode": 2e-3}
    constants = (
        FitConstant(name="beta", start=1e-10, low=1e-11, high=1e-9),
        FitConstant(name="decode", start=1e-3, low=1e-4, high=1e-1),
    )
    assert fit_constants(constants, predict, predict(truth), starts=1).values == pytest.approx(truth, rel=1e-3)


@pytest.mark.parametrize("change", [{"spread": -0.1}, {"decode_seconds": float("nan")}, {"node_rate": 0.0}])
def test_bad_machines(change):
    """Negative, missing or zero rates are refused by name."""
    with pytest.raises(InputError, match=next(iter(change))):
        replace(MACHINE, **change)
