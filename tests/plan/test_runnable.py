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
        several = len(axes) > 1 and axes != {"tensor", "context"} and not axes <= {"tensor", "expert", "pipeline"}
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


@pytest.mark.parametrize(("degrees", "said"), [({"tensor": 2}, ""), ({"tensor": 8}, "4 experts on 8 ranks")])
def test_experts_are_divided_whole(degrees, said):
    """Over tensor ranks too, as far as there are enough of them."""
    plan = Oracle(make_cluster(2, 4)).estimate(PROFILES["experts"], batch=8, degrees=Degrees(**degrees))
    assert plan.refusal.startswith(said)
    assert bool(plan.refusal) is bool(said)
    assert not plan.layout.refusal
