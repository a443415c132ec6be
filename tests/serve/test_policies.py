"""The policies of serving, without processes: batch sizes, gears, agreement, health, limits."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.ensemble import Ensemble
from trainwright.errors import ServeConfigError
from trainwright.serve import Cascade, Gear, Gears, Settings, fit_cascade, saved_by
from trainwright.serve.adaptive import AIMD, Adaptive
from trainwright.serve.cascade import agreement_of
from trainwright.serve.gears import places_of
from trainwright.serve.supervise import Health

sys.path.insert(0, str(Path(__file__).parent))

import numpy_members as members


class TestAIMD:
    @given(
        batch=st.integers(1, 512),
        most=st.integers(1, 512),
        seconds=st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=40),
    )
    def test_direction_and_limits(self, batch, most, seconds):
        """It grows when comfortable, shrinks when late, stays between, and never leaves its limits."""
        batch = min(batch, most)
        policy = AIMD(slo_seconds=0.1, most=most)
        after = policy.after(batch, seconds)
        assert 1 <= after <= most
        tail = np.quantile(seconds, 0.99)
        if tail > 0.1:
            assert after == max(1, int(0.9 * batch))
        elif tail <= 0.09:
            assert after > batch or after == most
        else:
            assert after == batch

    def test_settles_where_the_level_is_met(self):
        """With seconds in proportion to rows it ends near the largest batch that meets the objective."""
        adaptive = Adaptive(policy=AIMD(slo_seconds=0.1, most=256, window=8), batch=256)
        seen = []
        for _ in range(4000):
            adaptive.observe(1e-3 * adaptive.batch)
            seen.append(adaptive.batch)
        assert min(seen[2000:]) >= 70
        assert max(seen[2000:]) <= 116  # one bucket above what was comfortable

    def test_without_objective(self):
        adaptive = Adaptive(policy=None, batch=32)
        for _ in range(100):
            adaptive.observe(9.0)
        assert adaptive.batch == 32


def gears(**settings):
    table = tuple(Gear(members=(k,), weights=(1.0,), rows_per_second=rate) for k, rate in enumerate((10.0, 100.0, 1e3)))
    return Gears(gears=table, **settings)


class TestGears:
    def test_down_at_once_up_after_calm(self):
        """A step of load changes down with the first rows that show it, and up only after calm seconds."""
        table = gears(calm_seconds=10.0, memory_seconds=1.0)
        for tick in range(50):
            table = table.arrived(1, tick * 1.0)
        assert table.now == 0
        table = table.arrived(500, 50.0)
        assert table.now == 2
        changes = {}
        for tick in range(51, 120):
            table = table.arrived(1, tick * 1.0)
            changes.setdefault(table.now, tick)
        assert table.now == 0
        assert min(changes.values()) >= 51
        assert changes[0] >= 60  # ten seconds of calm first

    @given(loads=st.lists(st.tuples(st.floats(0.001, 5.0), st.integers(1, 5000)), max_size=60))
    def test_keeps_up_or_is_fastest(self, loads):
        """After every arrival the gear does the rate, or none does and it is the fastest."""
        table, now = gears(), 0.0
        for pause, rows in loads:
            now += pause
            table = table.arrived(rows, now)
            assert table.gear.rows_per_second >= table.rate or table.now == len(table.gears) - 1

    def test_refusals(self, tmp_path):
        with pytest.raises(ServeConfigError, match="got rates 10, 5; allowed: at least one gear, each with more rows"):
            Gears(gears=tuple(Gear(members=(0,), weights=(1.0,), rows_per_second=rate) for rate in (10.0, 5.0)))
        with pytest.raises(ServeConfigError, match="got rates none"):
            Gears(gears=())
        with pytest.raises(
            ServeConfigError, match="Gears: got member 7; allowed: members of the deployed ensemble, 0, 1"
        ):
            places_of(members.ensemble(tmp_path, 2), [7], "Gears")


class TestAgreement:
    def test_against_counting(self):
        """The share of the weight on the label with most weight, row by row."""
        draws = np.random.default_rng(0)
        predictions = [draws.dirichlet(np.ones(4), size=50) for _ in range(5)]
        weights = draws.random(5)
        found = agreement_of(predictions, weights)
        for row in range(50):
            shares = {}
            for prediction, weight in zip(predictions, weights, strict=True):
                label = int(prediction[row].argmax())
                shares[label] = shares.get(label, 0.0) + weight
            assert found[row] == pytest.approx(max(shares.values()) / weights.sum())

    @pytest.mark.parametrize(
        ("tiers", "agreement", "sentence"),
        [
            (((0, 1),), 0.5, "two tiers or more"),
            (((0, 1), (1,)), 0.5, "each member in exactly one"),
            (((0,), ()), 0.5, "two tiers or more"),
            (((0,), (1,)), 0.0, "agreement: got 0.0; allowed: above 0, up to 1"),
        ],
    )
    def test_refusals(self, tiers, agreement, sentence):
        with pytest.raises(ServeConfigError, match=sentence):
            Cascade(tiers=tiers, agreement=agreement)


@dataclass(frozen=True, kw_only=True, eq=False)
class Kept(Ensemble):
    """An ensemble with predictions of its own on one split."""

    told_predictions: list = field(default_factory=list)
    told_targets: np.ndarray | None = None

    def member_predictions(self, split="test"):
        return iter(self.told_predictions)


def kept(tmp_path, rows=2000, skill=3.0):
    """Return four members that mostly agree, and cost 1, 2, 3 and 4 ms a row."""
    found = members.ensemble(tmp_path, 4)
    draws = np.random.default_rng(1)
    targets = draws.integers(0, 3, rows)
    common = draws.normal(size=(rows, 3))
    common[np.arange(rows), targets] += skill
    predictions = []
    for _ in range(4):
        odds = np.exp(common + 0.5 * draws.normal(size=(rows, 3)))
        predictions.append(odds / odds.sum(axis=1, keepdims=True))
    costly = tuple(replace(member, seconds_per_row=1e-3 * (place + 1)) for place, member in enumerate(found.members))
    first = replace(costly[0])
    object.__setattr__(first, "targets", lambda split: targets)
    return Kept(members=(first, *costly[1:]), weights=found.weights, told_predictions=predictions, told_targets=targets)


class TestFittedCascade:
    def test_keeps_the_loss_and_saves(self, tmp_path):
        """Within a standard error of the whole ensemble, for less, and it counts what it says it does."""
        ensemble = kept(tmp_path)
        cascade = fit_cascade(ensemble)
        saved = saved_by(ensemble, cascade, "calibration")
        assert saved.loss - saved.full_loss <= saved.standard_error
        assert saved.cost_ratio < 0.9
        assert sum(saved.stopped) == pytest.approx(1.0)
        first = sum(trial + 1 for trial in cascade.tiers[0]) / 10
        assert saved.cost_ratio == pytest.approx(first + saved.stopped[1] * (1 - first))
        share = agreement_of([ensemble.told_predictions[t] for t in cascade.tiers[0]], [0.25] * len(cascade.tiers[0]))
        assert saved.stopped[0] == pytest.approx((share >= cascade.agreement).mean())

    def test_refusals(self, tmp_path):
        with pytest.raises(ServeConfigError, match="got 2 members that predict classes; allowed: three or more"):
            fit_cascade(members.ensemble(tmp_path / "two", 2))
        unmeasured = members.ensemble(tmp_path / "three", 3)
        lost = replace(unmeasured, members=tuple(replace(one, seconds_per_row=None) for one in unmeasured.members))
        with pytest.raises(ServeConfigError, match="the seconds of trial 0 were not measured"):
            fit_cascade(lost)


class TestHealth:
    def test_back_off_and_giving_up(self):
        """Restarts come later and later, a third end within the window gives up, ends long ago are forgotten."""
        health = Health(settings=Settings(backoff_seconds=0.5, failures=3, failure_seconds=60.0))
        assert [health.failed(0.0), health.failed(1.0), health.failed(2.0)] == [0.5, 1.0, None]
        assert health.failed(100.0) == 0.5

    def test_hung(self):
        """Ten medians and some seconds of silence."""
        health = Health(settings=Settings(hung_seconds=5.0))
        assert not health.hung(5.0)
        for seconds in (1.0, 1.0, 90.0):
            health.batch(seconds)
        assert not health.hung(15.0)
        assert health.hung(15.1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"segment_rows": 0}, "segment_rows: got 0; allowed: an integer >= 1"),
        ({"segment_rows": 70_000}, "segment_rows: got 70000; allowed: up to 65535"),
        ({"queue_rows": 1.5}, "queue_rows: got 1.5"),
        ({"quorum": 0.0}, "quorum: got 0.0; allowed: above 0, up to 1"),
        ({"deadline_ms": 0.0}, "deadline_ms: got 0.0; allowed: a number above 0"),
        ({"slo_ms": float("nan")}, "slo_ms: got nan"),
        ({"max_delay_ms": -1.0}, "max_delay_ms: got -1.0; allowed: a number >= 0"),
    ],
)
def test_settings_out_of_range(settings, sentence):
    with pytest.raises(ServeConfigError, match=sentence):
        Settings(**settings)
