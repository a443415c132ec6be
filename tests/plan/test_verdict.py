"""Verdicts before a trial starts: fits, repaired in the order of the cheapest change, or rejected with the bytes."""

import pytest
from oracle_cases import make_cluster, make_transformer

from trainwright.errors import InputError
from trainwright.plan import Degrees, Oracle, judge, verdicts

PROFILE = make_transformer(layers=12)
ORACLE = Oracle(make_cluster())


def peak(**choices):
    return ORACLE.estimate(PROFILE, batch=32, **{"degrees": Degrees(), **choices}).peak_bytes


def verdict(room, devices=1):
    return judge(ORACLE, PROFILE, batch=32, devices=devices, max_memory_bytes=room)


def test_fits_with_a_margin():
    """Three percent stay free: a peak of all the memory does not fit."""
    assert verdict(peak() * 1.031).state == "fits"
    assert verdict(peak() * 1.029).state != "fits"


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ({"recompute": "selective"}, "selective recomputation"),
        ({"recompute": "full"}, "full recomputation"),
        ({"micro": 2}, "micro-batches of 2"),
    ],
)
def test_repaired(choices, named):
    """The first change that suffices is named, and its plan given."""
    found = verdict(peak(**choices) * 1.031)
    assert found.state == "repaired"
    assert found.repair in {named, "selective recomputation", "full recomputation"} if "micro" in choices else named
    assert found.plan is not None
    assert found.plan.peak_bytes * 1.03 <= found.allowed_bytes
    assert found.runs
    assert found.repair in found.sentence


def test_state_is_divided_when_nothing_else_helps():
    """Where state alone is too much for a device, it is divided over those that there are."""
    smallest = peak(micro=1, recompute="full")
    found = verdict(smallest * 0.9, devices=4)
    assert found.state == "repaired"
    assert found.plan.zero > 0


def test_rejected():
    """What no repair mends is told with the bytes wanted and there, and the devices that would do."""
    smallest = peak(micro=1, recompute="full")
    found = verdict(smallest * 0.9)
    assert found.state == "rejected"
    assert not found.runs
    assert "devices would do" in found.sentence
    assert verdict(1000).sentence.endswith("no number of devices that the cluster has would do")


def test_as_engines_take_it():
    """A callable of configuration and devices, which knows the model of each configuration."""

    def profile_of(configuration):
        return make_transformer(layers=configuration["layers"]), 32

    ask = verdicts(ORACLE, profile_of, max_memory_bytes=peak() * 1.031)
    assert ask({"layers": 12}, 1).state == "fits"
    assert ask({"layers": 48}, 1).state != "fits"


def test_refused():
    """A cluster of unknown memory, and a batch that the devices do not divide."""
    with pytest.raises(InputError, match="multiple of 3"):
        judge(ORACLE, PROFILE, batch=32, devices=3)
    unknown = Oracle(make_cluster(device=type(ORACLE.cluster.device)(flops={"fp32": 1e12})))
    with pytest.raises(InputError, match="max_memory_bytes"):
        judge(unknown, PROFILE, batch=32)
