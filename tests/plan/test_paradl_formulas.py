"""ParaDL's formulas as a mode of the oracle: the paper's printed figures, and sums written out layer by layer."""

import json
import math
from dataclasses import replace

import pytest
from click.testing import CliRunner
from oracle_cases import DEVICE, make_cluster, make_convolutions

from trainwright.cli.plan import app
from trainwright.cluster import Cluster, NetworkLevel
from trainwright.errors import InputError
from trainwright.model.layer import Block, Layer
from trainwright.model.profile import Profile
from trainwright.plan import Degrees, Oracle
from trainwright.plan.oracle import NoPlan

SAMPLES, SECONDS, WEIGHTS, PASSED = 1_280_000, 3.119502e-3, 22_734_016, 9_096_256


def abci(nodes, alpha, oversubscription):
    """ABCI as the paper's script has it; 4 groups over 2 links at a quarter of their bandwidth share it by 8."""
    tiers = (
        NetworkLevel(name="nvlink", devices=4, alpha=9e-6, bandwidth=50e9),
        NetworkLevel(
            name="fabric",
            devices=4 * nodes,
            alpha=alpha,
            bandwidth=12.5e9,
            links_per_node=2,
            oversubscription=oversubscription,
        ),
    )
    return Cluster(nodes, 4, name="abci", device=replace(DEVICE, memory_bytes=0, memory_bandwidth=0.0), tiers=tiers)


def resnet(divided_share):
    """49 convolutions with so much of the work, and what is not divided, with the totals of ParaDL's ResNet-50."""

    def block(name, kind, share, *, outputs=0, weights=0, filters=0):
        layer = Layer(
            name=name, kind=kind, input_elements=0, output_elements=outputs, weight_elements=weights, filters=filters,
            channels=filters,
            forward_seconds=share * SECONDS / 3, backward_seconds=share * SECONDS * 2 / 3, origin="measured",
        )  # fmt: skip
        return Block(name=name, layers=(layer,), output_bytes=4 * outputs)

    each = divided_share / 49
    blocks = [block(f"conv{i}", "conv", each, outputs=PASSED // 49 + (i < PASSED % 49), filters=64) for i in range(49)]
    blocks.append(block("rest", "norm", 1 - divided_share, weights=WEIGHTS - 1000))
    blocks.append(block("classifier", "linear", 0.0, weights=1000, filters=1000))
    return Profile(name="resnet50", batch=1, blocks=tuple(blocks), origin="measured")


@pytest.mark.parametrize(
    ("devices", "filters", "alpha", "compute", "communication"),
    [
        (64, 1, 30.31e-6, 62.3900, 5.6783),
        (1024, 1, 30.98e-6, 3.89938, 1.55841),
        (64, 4, 40.31e-6, 345.766 - 1250 * 0.219091, 1250 * 0.219091),
        (1024, 4, 40.98e-6, 4.54426, 19.40249),
    ],
)
def test_the_printed_epochs_of_resnet50(devices, filters, alpha, compute, communication):
    """As the paper's script prints them, 64 samples a group; it counts whole batches in hybrids."""
    share = (1 - 4.54426 / (79 * 64 * SECONDS)) / 0.75  # of the work that is divided, by one of these figures
    oracle = Oracle(abci(devices // 4, alpha, 4.0 if filters > 1 else 2.0), formulas="paradl")
    degrees, batch = Degrees(data=devices // filters, filter=filters), 64 * devices // filters
    found = oracle.estimate(resnet(share), batch=batch, degrees=degrees, optimizer="sgd").breakdown
    iterations = math.ceil(SAMPLES / batch)
    assert iterations * found.communication == pytest.approx(communication, rel=2e-4)
    epochs = iterations if filters > 1 else SAMPLES / batch
    assert epochs * found.compute == pytest.approx(compute, rel=2e-4)
    assert (found.update, found.bubble) == (0, 0)


CASES = [
    {},
    {"data": 4},
    {"filter": 4},
    {"channel": 2},
    {"spatial": 4},
    {"data": 2, "filter": 4},
    {"data": 4, "spatial": 2},
    {"pipeline": 2},
]


@pytest.mark.parametrize("degrees", CASES, ids=str)
def test_every_formula_equals_sums_written_out(degrees):
    """Table 3 of the paper, with a loop over the layers of a chain of convolutions, on one node."""
    profile, cluster, batch = make_convolutions(), make_cluster(nodes=1, per_node=8), 16
    seconds = [(1e-3 * (i + 1), 2e-3 * (i + 1)) for i in range(len(profile.blocks))]
    layers = [
        replace(b.layers[0], forward_seconds=f, backward_seconds=g)
        for b, (f, g) in zip(profile.blocks, seconds, strict=True)
    ]
    profile = replace(
        profile, blocks=tuple(replace(b, layers=(x,)) for b, x in zip(profile.blocks, layers, strict=True))
    )
    micro = {"micro": 4} if "pipeline" in degrees else {}
    plan = Oracle(cluster, formulas="paradl").estimate(
        profile, batch=batch, degrees=Degrees(**degrees), optimizer="sgd", **micro
    )
    p1 = degrees.get("data", 1)
    axis, p2 = next(((name, n) for name, n in degrees.items() if name != "data"), ("", 1))
    alpha, beta = 9e-6, 1 / 50e9
    work = kept = weights = held = exchanged = 0.0
    for place, layer in enumerate(layers):
        conv = layer.kind == "conv"
        divided = conv and not (axis == "channel" and place == 0) and axis in {"filter", "channel", "spatial"}
        part = p2 if divided else 1
        work += batch / p1 * (layer.forward_seconds + layer.backward_seconds) / part
        kept += batch / p1 * (layer.input_elements + layer.output_elements) / (part if axis == "spatial" else 1)
        weights += layer.weight_elements
        held += layer.weight_elements / (part if axis in {"filter", "channel"} else 1)
        if axis in {"filter", "channel"} and divided:
            exchanged += 3 * (p2 - 1) * (alpha + batch / p1 * layer.output_elements * 4 * beta / p2)
        if axis == "spatial" and divided:
            halo = layer.channels * layer.input_size[1] * (layer.kernel[0] - 1) // 2
            exchanged += 4 * (alpha + batch / p1 * halo * 4 * beta)
    for ranks in (p1, p2 if axis == "spatial" else 1):
        exchanged += 2 * (ranks - 1) * (alpha + 4 * weights * beta / ranks)
    if axis == "spatial" and p1 > 1:
        exchanged += 2 * (p2 - 1) * (alpha + batch / p1 * layers[2].output_elements * 4 * beta / p2)
    update, size, bubble = held * 12 / (900e9 * 0.8), 8 * (kept + held), 0.0
    if axis == "pipeline":
        # Four blocks in two stages: 1 + 2 + 3 against 4 milliseconds forward, twice that backward.
        work, bubble = batch * 18e-3, 18e-3 * 4
        exchanged = 2 * (2 + 4 - 2) * (alpha + 4 * layers[2].output_elements * 4 * beta)
        stages = layers[:3], layers[3:]
        update = max(sum(x.weight_elements for x in stage) for stage in stages) * 12 / (900e9 * 0.8)
        size = 8 * max(
            sum(batch * (x.input_elements + x.output_elements) + x.weight_elements for x in stage) for stage in stages
        )
    found = plan.breakdown
    assert (found.compute, found.bubble, found.communication, found.update) == pytest.approx(
        (work, bubble, exchanged, update)
    )
    assert plan.peak_bytes == pytest.approx(size)


def test_a_ranking_holds_the_papers_strategies_alone():
    """The best of each by brute force over degrees; what it has no formulas for is not priced, or refused."""
    profile, cluster = make_convolutions(), make_cluster(nodes=2)
    oracle = Oracle(cluster, formulas="paradl")
    found = {plan.strategy: plan for plan in oracle.rank(profile, batch=16, devices=8)}
    assert set(found) == {
        "serial",
        "data",
        "filter",
        "channel",
        "spatial",
        "pipeline",
        *(f"data+{name}" for name in ("filter", "channel", "spatial")),
    }
    for name, plan in found.items():
        axes = [axis for axis in name.split("+") if axis != "serial"]
        pairs = [
            dict(zip(axes, (a, b), strict=False))
            for a in (2, 4, 8)
            for b in (2, 4, 8)
            if a * (b if len(axes) > 1 else 1) <= 8
        ]
        others = []
        for degrees in pairs or [{}]:
            try:
                others += [
                    oracle.estimate(profile, batch=16, degrees=Degrees(**degrees), micro=micro)
                    for micro in ((1, 2, 4, 8, 16) if "pipeline" in axes else (None,))
                ]
            except InputError:
                continue
        assert plan.seconds_per_iteration <= min(other.seconds_per_iteration for other in others) * (1 + 1e-9)
    with pytest.raises(InputError, match=r"formulas paradl: got 'zero1'; allowed: serial, data, filter"):
        oracle.estimate(profile, batch=16, degrees=Degrees(data=2), zero=1)
    with pytest.raises(InputError, match=r"Oracle.formulas: got 'paradle'; allowed: "):
        Oracle(cluster, formulas="paradle")
    with pytest.raises(NoPlan, match="no strategy fits: each needs more than"):
        oracle.rank(profile, batch=16, devices=8, max_memory_bytes=1000)


def test_the_command_asks_for_them(tmp_path):
    make_convolutions().save(tmp_path / "profile.json")
    options = ["--cluster", "abci-v100", "--nodes", "2", "--batch", "16", "--formulas", "paradl", "--json"]
    said = CliRunner().invoke(app, [str(tmp_path / "profile.json"), *options])
    assert said.exit_code == 0, said.output
    assert "data+filter" in {each["strategy"] for each in json.loads(said.output.splitlines()[-1])["plans"]}
