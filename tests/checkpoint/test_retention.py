"""Retention: what must stay stays under any policy, and the rest is as the policy says."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from trainwright.checkpoint import Retention
from trainwright.checkpoint.manifest import Manifest
from trainwright.checkpoint.policy.retention import choose_retained
from trainwright.checkpoint.save.publish import Published


def checkpoint(step, *, loss=None, pin=None, epoch=0):
    report = {"metrics": {} if loss is None else {"loss": loss}}
    manifest = Manifest(step=step, report=report, pin=pin, epoch=epoch)
    return Published(path=Path(f"step-{step}"), manifest=manifest)


def steps(found):
    return [one.manifest.step for one in found]


def test_the_newest_the_best_and_every_tenth():
    losses = {1: 0.1, 2: 0.9, 10: 0.8, 11: 0.2, 12: "nan", 20: 0.7, 21: 0.6, 22: 0.5}
    line = [checkpoint(step, loss=loss) for step, loss in sorted(losses.items(), reverse=True)]
    policy = Retention(last=2, best=2, metric="loss", every_steps=10)
    assert steps(choose_retained(line, policy).keep) == [22, 21, 20, 11, 10, 1]
    policy = Retention(last=1, best=1, metric="-loss")
    assert steps(choose_retained(line, policy).keep) == [22, 2]


def test_ends_of_epochs():
    """Those saved within an epoch come after the one at the end of the epoch before, which stays."""
    line = [checkpoint(step, epoch=step // 10) for step in (37, 35, 33, 30, 28, 20, 10)]
    assert steps(choose_retained(line, Retention(last=2, epoch_ends=1)).keep) == [37, 35, 30]
    assert steps(choose_retained(line, Retention(last=1, epoch_ends=2)).keep) == [37, 30, 20]
    assert steps(choose_retained(line[3:], Retention(last=1, epoch_ends=1)).keep) == [30]


def test_pins():
    line = [checkpoint(step, pin="rung 3" if step == 2 else None) for step in (5, 4, 3, 2, 1)]
    assert steps(choose_retained(line, Retention(last=1)).keep) == [5, 2]


records = st.builds(
    checkpoint,
    st.integers(0, 30),
    loss=st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.just("nan"),
    pin=st.sampled_from([None, None, "rung 1"]),
)
policies = st.builds(
    Retention,
    last=st.integers(1, 4),
    best=st.integers(0, 3),
    metric=st.sampled_from(["loss", "-loss"]),
    every_steps=st.integers(0, 5),
)


@given(line=st.lists(records, max_size=10, unique_by=lambda one: one.path), policy=policies)
def test_what_always_holds(line, policy):
    """Nothing is both kept and dropped; pins and the newest stay."""
    line = sorted(line, key=lambda one: one.manifest.step, reverse=True)
    keep, drop = choose_retained(line, policy)
    assert sorted(steps(keep) + steps(drop)) == sorted(steps(line))
    assert [one for one in line if one in keep] == list(keep)
    certain = [one for one in line if one.manifest.pin is not None]
    assert all(one in keep for one in certain)
    assert all(one in keep for one in line[: policy.last])
    if line:
        assert keep
