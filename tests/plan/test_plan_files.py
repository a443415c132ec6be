"""Plans as files: what is read is what was written, and what is no plan is refused in one sentence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import InputError
from trainwright.plan import Degrees, Forecast, ParallelPlan
from trainwright.plan.forecast import Bottleneck, Breakdown, Collective

COUNTS = st.integers(1, 64)
SECONDS = st.floats(0, 1e3)
PLANS = st.builds(
    Forecast,
    strategy=st.sampled_from(["data", "fsdp+tensor"]),
    degrees=st.builds(Degrees, tensor=COUNTS, data=COUNTS, pipeline=COUNTS),
    batch=COUNTS,
    micro_batch=COUNTS,
    sequence=st.booleans(),
    stages=st.lists(COUNTS).map(tuple),
    recomputed=st.lists(st.text()).map(tuple),
    caveat=st.text(),
    breakdown=st.builds(Breakdown, compute=SECONDS, bubble=SECONDS),
    interval=st.tuples(SECONDS, SECONDS),
    collectives=st.lists(
        st.builds(
            Collective, operation=st.just("all_reduce"), axis=st.just("data"), bytes=COUNTS, count=COUNTS,
            phase=st.just("gradient"),
        )
    ).map(tuple),
    bottlenecks=st.lists(
        st.builds(Bottleneck, id=st.just("B1"), sentence=st.text(), share=SECONDS, advice=st.text())
    ).map(tuple),
)  # fmt: skip


@given(PLANS)
def test_comes_back_equal(tmp_path_factory, plan):
    path = tmp_path_factory.getbasetemp() / "plan.json"
    plan.save(path)
    assert Forecast.load(path) == plan
    assert ParallelPlan.load(path) == plan.layout


def document(tmp_path):
    path = tmp_path / "plan.json"
    ParallelPlan(strategy="data", degrees=Degrees(data=2), batch=4, micro_batch=2).save(path)
    return json.loads(path.read_text())


def changed(tmp_path, *, layout=None, **change):
    """Write a plan's file with other content; return its path."""
    content = document(tmp_path) | change
    content["layout"] |= layout or {}
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 1}, "schema: got 1; allowed: 2"),
        ({"layout": {"colour": "red"}}, "colour: unknown key; allowed: strategy, degrees"),
        ({"layout": {"degrees": {"data": 0}}}, "degrees, data: got 0; allowed: a whole number >= 1"),
        ({"layout": {"degrees": {"date": 2}}}, "degrees, date: unknown key; allowed: tensor"),
        ({"layout": {"degrees": 3}}, "degrees: got 3; allowed: a table of keys: tensor"),
        ({"layout": {"zero": 4}}, "zero: got 4; allowed: 0, 1, 2, 3"),
        ({"layout": {"recompute": "some"}}, "recompute: got 'some'; allowed: 'none', 'selective'"),
    ],
)
def test_changed_by_hand(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        ParallelPlan.load(changed(tmp_path, **change))


def test_no_plan(tmp_path):
    content = document(tmp_path)
    del content["layout"]["batch"]
    (tmp_path / "less.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="batch"):
        ParallelPlan.load(tmp_path / "less.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(InputError, match="got list; allowed: an object"):
        ParallelPlan.load(tmp_path / "list.json")
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(InputError, match="it is no JSON"):
        ParallelPlan.load(tmp_path / "torn.json")
    with pytest.raises(InputError, match="there is no such file"):
        ParallelPlan.load(tmp_path / "absent.json")
    with pytest.raises(InputError, match=r"it cannot be written \(no such file"):
        ParallelPlan.load(changed(tmp_path)).save(tmp_path / "absent" / "plan.json")
