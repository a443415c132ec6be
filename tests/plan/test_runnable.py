"""Plans that are priced and not set up say so, by the rules that set-up itself follows."""

import pytest
from oracle_cases import make_cluster, make_convolutions, make_transformer

from trainwright.plan import Degrees, Layout, Oracle

PROFILES = {"transformer": make_transformer(), "experts": make_transformer(experts=4), "images": make_convolutions()}


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_rankings_say_what_is_not_set_up(name, precision):
    """Three axes at once and half precision by hand; data parallelism is always set up in fp32."""
    ranking = Oracle(make_cluster(2, 4)).rank(PROFILES[name], batch=16, devices=8, precision=precision)
    refusals = {plan.strategy: plan.refusal for plan in ranking}
    if precision == "amp-fp16":
        assert all(refusals.values())
        return
    assert not any(refusals[name] for name in ("serial", "data", "zero2", "fsdp") if name in refusals)
    for strategy, refusal in refusals.items():
        axes = set(strategy.split("+")) - {"data", "zero1", "zero2", "fsdp", "hsdp", "serial"}
        several = len(axes) > 1 and axes not in ({"tensor", "pipeline"}, {"tensor", "context"})
        assert bool(refusal) or not several, strategy
    if name == "experts":
        assert "expert" in refusals
        assert not refusals["expert"]


def test_a_layout_says_what_is_allowed():
    layout = Layout(strategy="filter", degrees=Degrees(data=2, filter=2), batch=8, micro_batch=4, zero=3, shard=2)
    assert layout.refusal == (
        "ZeRO 3 beside filter parallelism; allowed: with data, tensor, context, expert, pipeline, channel"
    )
    for settings, said in (
        ({"data": 1, "zero": 1, "shard": 1}, "ZeRO beside expert parallelism without data ranks; allowed: with some"),
        (
            {"data": 4, "zero": 3, "shard": 2},
            "ZeRO over 2 of 4 data ranks beside expert parallelism",
        ),
        ({"data": 2, "zero": 2, "shard": 2}, ""),
    ):
        degrees = Degrees(data=settings.pop("data"), expert=2)
        layout = Layout(strategy="expert", degrees=degrees, batch=8, micro_batch=1, **settings)
        assert layout.refusal.startswith(said)
        assert bool(layout.refusal) is bool(said)


def test_experts_are_not_divided_by_tensor_ranks():
    """The profile tells that a model has experts, which training does not divide."""
    degrees = Degrees(tensor=2)
    for name, refused in (("experts", True), ("transformer", False)):
        plan = Oracle(make_cluster(1, 2)).estimate(PROFILES[name], batch=8, degrees=degrees)
        assert ("experts" in plan.refusal) is refused
        assert not plan.layout.refusal
