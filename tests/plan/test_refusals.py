"""What is refused for want of memory wants more than there is: by its own figures, of every refusal there is."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_cases import make_cluster, make_convolutions, make_transformer

from trainwright.model.describe.transformer import describe_transformer
from trainwright.plan import Oracle, judge
from trainwright.plan.oracle import NoPlan

UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
PROFILES = (
    make_transformer(),
    make_transformer(layers=2, experts=4),
    make_convolutions(),
    make_convolutions((3, 8), 8),
)


def read(text):
    """Return the number of devices or bytes that a figure says."""
    number, unit = re.fullmatch(r"([0-9.e+]+)(?: (kB|MB|GB|devices?))?", text).groups()
    return float(number) * UNITS.get(unit, 1)


def check(rejections):
    for each in rejections:
        assert read(each.value) > read(each.allowed), each


@settings(max_examples=60, deadline=None)
@given(
    profile=st.sampled_from(PROFILES),
    batch=st.sampled_from([1, 4, 8, 24]),
    devices=st.sampled_from([1, 2, 4, 8]),
    memory=st.floats(4.5, 10.5).map(lambda power: 10**power),
    strategies=st.sampled_from([None, ("data", "hsdp"), ("hsdp",), ("fsdp", "tensor"), ("zero1", "pipeline")]),
    goal=st.sampled_from(["time", "memory"]),
)
def test_every_refusal_wants_more_than_there_is(*, profile, batch, devices, memory, strategies, goal):
    oracle = Oracle(make_cluster(4, 2))
    settings = {"batch": batch, "devices": devices, "max_memory_bytes": memory, "goal": goal}
    try:
        check(oracle.rank(profile, strategies=strategies, **settings).rejected)
    except NoPlan as error:
        check(error.rejected)
        there, least = re.search(r"more than (\S+ \S+) a device, the least (\S+ \S+) \(", str(error)).groups()
        assert read(least) > read(there)
    if batch % devices == 0:
        verdict = judge(oracle, profile, batch=batch, devices=devices, max_memory_bytes=memory)
        wanted, there = re.search(r"(\S+ .B) are wanted, .* included, (\S+ .B) are there", verdict.sentence).groups()
        assert (read(wanted) > read(there)) is (verdict.state != "fits")


def test_state_that_is_divided_inside_a_node_is_not_taken_to_be_divided_over_all():
    """Hybrid sharding of a model of 1.3 billion parameters over 16 of 128 nodes' devices."""
    profile = describe_transformer(hidden=2048, layers=24, heads=16, sequence=512, vocabulary=51200)
    with pytest.raises(NoPlan) as caught:
        Oracle(make_cluster(16, 2)).rank(
            profile, batch=32, devices=32, strategies=["hsdp"], max_memory_bytes=2e9, precision="amp-bf16"
        )
    refused = {each.strategy: read(each.value) for each in caught.value.rejected if each.reason.startswith("memory")}
    assert refused["hsdp"] >= profile.parameters * 16 / 2  # the shards of a node of two
