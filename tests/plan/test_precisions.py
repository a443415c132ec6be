"""A plan is of the model as it runs in the plan's precision: traced in it, or converted, which is then said."""

import pytest
from oracle_cases import make_cluster, make_transformer

from trainwright.errors import ProfileError
from trainwright.model.profile import Profile, Traces
from trainwright.plan import Degrees, Forecast, Oracle, judge

torch = pytest.importorskip("torch")
nn = torch.nn

SAMPLE = torch.randn(8, 64)
ORACLE = Oracle(make_cluster())


def normed():
    """Norms stay in fp32 under autocast."""
    return nn.Sequential(*(each for _ in range(3) for each in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())))


def estimate(profile, precision):
    return ORACLE.estimate(profile, batch=8, degrees=Degrees(), precision=precision, optimizer="sgd")


def test_each_precision_is_traced_once(monkeypatch):
    """Ranking, estimates and verdicts take the profile of their precision, which is that of `Profile.trace`."""
    model, asked, trace = normed(), [], Profile.trace

    def counted(*args, precision, **settings):
        asked.append(precision)
        return trace(*args, precision=precision, **settings)

    traces = Traces(model, SAMPLE, optimizer="sgd")
    monkeypatch.setattr(Profile, "trace", counted)
    choices = {"batch": 8, "devices": 2, "optimizer": "sgd"}
    ranked = {name: ORACLE.rank(traces, precision=name, **choices) for name in ("fp32", "amp-bf16")}
    assert judge(ORACLE, traces, batch=8, precision="amp-bf16", optimizer="sgd").runs
    assert asked == ["fp32", "amp-bf16"]
    for name, ranking in ranked.items():
        assert ranking.plans == ORACLE.rank(traces(name), precision=name, **choices).plans
        traced = trace(model, SAMPLE, optimizer="sgd", precision=name)
        assert estimate(traces, name).peak_bytes == traced.peak_bytes + traced.workspace_bytes
        assert {plan.caveat for plan in ranking} == {""}


def test_a_converted_profile_says_so(tmp_path):
    """Too little where autocast keeps fp32; plan, file and verdict have the sentence, a described shape has none."""
    traces = Traces(normed(), SAMPLE, optimizer="sgd")
    exact, rough = (estimate(each, "amp-bf16") for each in (traces, traces("fp32")))
    assert rough.activation_bytes < 0.95 * exact.activation_bytes
    assert "the profile is of fp32, converted to amp-bf16" in rough.caveat
    assert 'precision="amp-bf16"' in rough.caveat
    rough.save(tmp_path / "plan.json")
    assert Forecast.load(tmp_path / "plan.json") == rough
    assert rough.caveat in judge(ORACLE, traces("fp32"), batch=8, precision="amp-bf16").sentence
    assert estimate(make_transformer(), "amp-bf16").caveat == ""


def test_refused():
    with pytest.raises(ProfileError, match="precision: got 'bf17'"):
        Traces(normed(), SAMPLE)("bf17")
