"""What our training does not carry out, and the search proposes if it is asked to, priced by hand-written sums."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from oracle_cases import make_cluster, make_transformer

from trainwright.cli.plan import app
from trainwright.cluster import Cluster, collective_seconds, contention
from trainwright.errors import InputError
from trainwright.plan import Degrees, Oracle
from trainwright.profile import describe_transformer

GPUS = Cluster.preset("dgx-h100", nodes=2)
LONG = describe_transformer(hidden=2048, layers=4, heads=32, kv_heads=8, sequence=32768, vocabulary=32000)
DEEP = describe_transformer(hidden=4096, layers=32, heads=32, sequence=2048, vocabulary=32000)


def test_zero_bubble_waits_a_third_of_what_1f1b_waits():
    """In its memory; of a full recomputation half of it, as a slot has four parts then, of which two are waited for."""
    for recompute, left in (("none", 1 / 3), ("selective", 1 / 3), ("full", 1 / 2)):
        one, other = (
            Oracle(GPUS).estimate(
                DEEP,
                batch=16,
                micro=1,
                degrees=Degrees(pipeline=8),
                schedule=schedule,
                recompute=recompute,
                precision="amp-bf16",
            )
            for schedule in ("1f1b", "zero-bubble")
        )
        assert other.breakdown.bubble == pytest.approx(one.breakdown.bubble * left)
        assert (other.peak_bytes, other.breakdown.compute) == (one.peak_bytes, one.breakdown.compute)
        assert "zero-bubble schedules" in other.refusal
        assert not one.refusal


@pytest.mark.parametrize("heads", [8, 2])
def test_ulysses_exchanges_heads(heads):
    """Four all-to-alls a block and direction: of queries and outputs, and of keys and values, repeated if too few."""
    model = make_transformer(layers=3, heads=8, kv_heads=heads)
    cluster = make_cluster(nodes=1, per_node=4, device=GPUS.device)
    plan = Oracle(cluster).estimate(
        model, batch=2, degrees=Degrees(context=4), context_by="ulysses", precision="amp-bf16"
    )
    exchanged = [each for each in plan.collectives if each.axis == "context"]
    element = 2 * 2 * 128 // 4 * 2  # samples, positions of a rank, bytes
    sizes = sorted({element // 2 * 256, element // 2 * 256 * max(heads, 4) // 8})
    assert sorted({each.bytes for each in exchanged}) == sizes
    assert {each.operation for each in exchanged} == {"all_to_all"}
    assert sum(each.count for each in exchanged) == 3 * 2 * 4
    flows = contention(cluster, ranks=4)
    seconds = sum(
        each.count * collective_seconds(cluster, "all_to_all", each.bytes, ranks=4, flows=flows).seconds
        for each in exchanged
    )
    ring = Oracle(cluster).estimate(model, batch=2, degrees=Degrees(context=4), context_by="ring", precision="amp-bf16")
    assert plan.breakdown.communication >= seconds
    assert plan.activation_bytes == ring.activation_bytes
    assert plan.breakdown.compute == pytest.approx(ring.breakdown.compute, rel=0.02)  # the host starts fewer exchanges


def test_offloading_waits_for_what_computation_does_not_hide():
    """A slow link is waited for, a fast one is not; the device keeps two blocks' activations in the place of all."""
    plans = {}
    for link in (1e9, 1e15):
        cluster = make_cluster(
            nodes=1, device=GPUS.device.__class__(**{**_fields(GPUS.device), "host_bandwidth": link})
        )
        oracle = Oracle(cluster)
        none, away = (
            oracle.estimate(DEEP, batch=4, degrees=Degrees(), recompute=name, precision="amp-bf16")
            for name in ("none", "offload")
        )
        plans[link] = away.breakdown.compute - none.breakdown.compute
        kept = none.activation_bytes - away.activation_bytes
        # Thirty-two blocks are kept without, two with it.
        assert away.activation_bytes < 0.1 * none.activation_bytes
        assert away.peak_bytes < none.peak_bytes - 0.7 * kept  # the rest is gradients, which come as activations go
        if link == 1e9:
            assert plans[link] == pytest.approx(2 * kept / link - none.breakdown.compute, rel=0.02)
    assert plans[1e15] == 0
    assert "recompute='offload'" in away.refusal
    with pytest.raises(InputError, match=r"offload: cluster 'made-up' has no device.host_bandwidth"):
        Oracle(make_cluster()).rank(DEEP, batch=4, recompute="offload")


def _fields(record):
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def test_a_search_proposes_them_where_they_pay():
    """Asked for, each is found by brute force over degrees and micro-batches, and no plan becomes slower."""
    oracle = Oracle(GPUS)
    for model, also, strategies in (
        (DEEP, "zero-bubble", ("pipeline",)),
        (LONG, "ring", ("context",)),
        (LONG, "ulysses", ("context",)),
        (DEEP, "offload", ("fsdp",)),
    ):
        plain = {
            each.strategy: each
            for each in oracle.rank(model, batch=16, devices=16, precision="amp-bf16", strategies=strategies)
        }
        found = {
            each.strategy: each
            for each in oracle.rank(
                model, batch=16, devices=16, precision="amp-bf16", strategies=strategies, also=[also]
            )
        }
        assert set(found) >= set(plain)
        for name, plan in plain.items():
            assert found[name].seconds_per_iteration <= plan.seconds_per_iteration * (1 + 1e-9)
    # The best by brute force.
    best = oracle.rank(
        LONG,
        batch=16,
        devices=16,
        precision="amp-bf16",
        strategies=["context"],
        also=["ring", "ulysses"],
        recompute="full",
    )
    ways = []
    for ranks in (2, 4, 8, 16):
        for micro in (1, 2, 4, 8, 16):
            for way in ("", "ring", "ulysses"):
                plan = oracle.estimate(
                    LONG,
                    batch=16,
                    micro=micro,
                    degrees=Degrees(context=ranks),
                    precision="amp-bf16",
                    recompute="full",
                    context_by=way,
                )
                ways.append((plan.seconds_per_iteration if plan.peak_bytes <= 80e9 else np.inf, way))
    assert best[0].seconds_per_iteration == pytest.approx(min(ways)[0])
    assert best[0].context_by == min(ways)[1] != ""
    assert "context parallelism by" in best[0].refusal


def test_the_command_tries_them(tmp_path):
    DEEP.save(tmp_path / "profile.json")
    arguments = [
        str(tmp_path / "profile.json"),
        "--cluster",
        "dgx-h100",
        "--nodes",
        "2",
        "--batch",
        "16",
        "--precision",
        "amp-bf16",
    ]
    said = CliRunner().invoke(
        app, [*arguments, "--strategies", "pipeline,tensor", "--also", "zero-bubble,offload", "--json"]
    )
    assert said.exit_code == 0, said.output
    assert "zero-bubble" in {each["schedule"] for each in json.loads(said.output.splitlines()[-1])["plans"]}
    refused = CliRunner().invoke(app, [*arguments, "--also", "zero-bubbles"])
    assert "also: got 'zero-bubbles'; allowed: " in str(refused.exception)
