"""Learning-curve extrapolation: its posterior against integration on a grid, and what the rule makes of it."""

import math
from itertools import pairwise

import numpy as np
import pytest
from streams import judge

from trainwright.errors import ScheduleError
from trainwright.randomness import rng
from trainwright.schedule import CONTINUE, Continue, Ended, Extrapolate, Reported, Stop, TrialView, View
from trainwright.schedule._draws import Curve
from trainwright.schedule._families import FAMILIES, Grid
from trainwright.schedule._posterior import pareto_k, posterior
from trainwright.schedule._shapes import Prior
from trainwright.schedule.extrapolate import recalibrated

END = Grid.of(np.ones(1), 30)


def curve_of(values, length=30):
    return Curve(Grid.of(np.arange(1, len(values) + 1) / length, length), np.array(values))


@pytest.mark.parametrize("name", ["lin-log", "ilog2"])
def test_posterior_equals_integration_on_a_grid(name):
    """Mean and tail of f(R) for the families of two parameters, by a sum over a, log b and log sigma."""
    family = FAMILIES[name]
    truth = family.curve(np.array([[-0.3], [-0.7], [0.0], [0.0]]), curve_of(range(12)).grid)[:, 0]
    values = truth + 0.1 * np.random.default_rng(1).standard_normal(12)
    curve = curve_of(values)
    found = posterior([family], curve, Prior.broad(1), END, rng(0, "test", 0))
    a, b, s = np.meshgrid(
        np.linspace(-0.9, 0.3, 401), np.linspace(-1.6, 0.2, 61), np.linspace(-4.5, -1, 29), indexing="ij"
    )
    theta = np.stack([a.ravel(), b.ravel(), np.zeros(a.size), np.zeros(a.size)])
    variance = np.exp(2 * s.ravel()) + 0.01**2  # no curve is believed more exactly
    gaps = (values[:, None] - family.curve(theta, curve.grid)) ** 2 / variance
    log = -2.5 * np.log1p(gaps / 4).sum(axis=0) - 6 * np.log(variance)
    log += -(theta[:2] ** 2).sum(axis=0) / 8 - 0.5 * np.exp(2 * s.ravel()) + s.ravel()
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    ends = family.curve(theta, END)[0]
    mean = weights @ ends
    assert found.weights @ found.ends == pytest.approx(mean, abs=0.01)
    for loss in (mean - 0.1, mean, mean + 0.1):
        assert found.above(loss) == pytest.approx(weights[ends >= loss].sum(), abs=0.05)


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_finds_its_own_curve(name):
    """From half of a nearly exact curve the end is known to a few hundredths."""
    family = FAMILIES[name]
    theta = np.array([[-1.0], [0.5], [-0.5], [-0.3]])
    whole = family.curve(theta, curve_of(range(30)).grid)[:, 0]
    noise = 0.03 * np.random.default_rng(0).standard_normal(30)
    found = posterior([family], curve_of((whole + noise)[:20]), Prior.broad(1), END, rng(0, "test", 1))
    assert found is not None
    assert found.weights @ found.ends == pytest.approx(whole[-1], abs=0.1)


@pytest.mark.parametrize("k", [0.2, 0.5, 1.0])
def test_pareto_k_of_known_tails(k):
    """Weights u^-k have a tail of shape k."""
    found = [pareto_k(np.random.default_rng(seed).random(2048) ** -k) for seed in range(20)]
    assert np.mean(found) == pytest.approx(k, abs=0.12)


@pytest.mark.parametrize("name", ["ilog2", "exp4"])
def test_walkers_find_what_draws_find(name, monkeypatch):
    """Where importance draws count as unsound, a chain of walkers gives the same end and its spread."""
    whole = FAMILIES[name].curve(np.array([[-0.5], [0.2], [-0.6], [0.1]]), curve_of(range(20)).grid)[:, 0]
    curve = curve_of(whole + 0.1 * np.random.default_rng(2).standard_normal(20))
    drawn = posterior([FAMILIES[name]], curve, Prior.broad(1), END, rng(0, "test", 3))
    monkeypatch.setattr("trainwright.schedule._posterior.sound", lambda _: False)
    walked = posterior([FAMILIES[name]], curve, Prior.broad(1), END, rng(0, "test", 3))
    assert walked.ends.size == 64 * 150
    assert median(walked) == pytest.approx(median(drawn), abs=0.03)
    assert width(walked) == pytest.approx(width(drawn), rel=0.15)


def test_families_mix_alike_by_draws_and_by_walkers(monkeypatch):
    """The evidence of walkers is that of draws: shares of two families differ by a few hundredths."""
    whole = FAMILIES["exp4"].curve(np.array([[-0.5], [0.2], [-0.6], [0.1]]), curve_of(range(20)).grid)[:, 0]
    curve = curve_of(whole + 0.1 * np.random.default_rng(4).standard_normal(20))
    families = [FAMILIES["lin-log"], FAMILIES["ilog2"]]
    drawn = posterior(families, curve, Prior.broad(2), END, rng(0, "test", 5))
    monkeypatch.setattr("trainwright.schedule._posterior.sound", lambda _: False)
    walked = posterior(families, curve, Prior.broad(2), END, rng(0, "test", 5))
    halves = [found.weights[: found.weights.size // 2].sum() for found in (drawn, walked)]
    assert halves[0] == pytest.approx(halves[1], abs=0.06)


def test_walkers_that_do_not_mix_leave_the_family_out(monkeypatch):
    """No posterior rather than an unsound one."""
    monkeypatch.setattr("trainwright.schedule._posterior.sound", lambda _: False)
    monkeypatch.setattr("trainwright.schedule._walkers._LEAST_SAMPLE", math.inf)
    curve = curve_of(np.linspace(1.0, 0.5, 12))
    assert posterior([FAMILIES["lin-log"]], curve, Prior.broad(1), END, rng(0, "test", 6)) is None


def test_errors_that_follow_each_other_count_less():
    """Of two curves with the same errors in another order, the one where neighbours err alike leaves more open."""
    whole = FAMILIES["lin-log"].curve(np.array([[0.0], [-0.7], [0.0], [0.0]]), curve_of(range(24)).grid)[:, 0]
    errors = 0.1 * np.sin(np.arange(24) / 2.0)
    found = [
        posterior([FAMILIES["lin-log"]], curve_of(whole + order), Prior.broad(1), END, rng(0, "test", 7))
        for order in (errors, np.random.default_rng(0).permutation(errors))
    ]
    assert width(found[0]) > 1.3 * width(found[1])


def test_an_interval_has_room_for_noise():
    """The interval of the last loss is wider than that of the curve, and holds as much as it says of draws from it."""
    whole = FAMILIES["lin-log"].curve(np.array([[0.0], [-0.7], [0.0], [0.0]]), curve_of(range(30)).grid)[:, 0]
    draw = np.random.default_rng(8)
    inside = []
    for number in range(40):
        losses = whole + 0.1 * draw.standard_t(4, 30)
        found = posterior(
            [FAMILIES["lin-log"]], curve_of(losses[:20]), Prior.broad(1), END, rng(0, "test", 100 + number)
        )
        low, high = found.interval(0.9)
        inside.append(low <= losses[-1] <= high)
    assert 0.8 <= np.mean(inside) <= 1.0


def quantile(found, level):
    order = np.argsort(found.ends)
    return found.ends[order][np.searchsorted(np.cumsum(found.weights[order]), level)]


def median(found):
    return quantile(found, 0.5)


def width(found):
    return quantile(found, 0.9) - quantile(found, 0.1)


def study(rule, curves):
    """Return the index after whole trials with these curves."""
    index = rule.empty()
    for number, curve in enumerate(curves):
        for epoch, loss in enumerate(curve, start=1):
            index = rule.fold(index, Reported(trial=number, epoch=epoch, losses=(loss,)))
        index = rule.fold(index, Ended(trial=number, failed=False))
    return index


def falling(floor, speed=0.5, epochs=27):
    return [floor + (1 - floor) * math.exp(-speed * epoch) for epoch in range(1, epochs + 1)]


def at_rung(rule, index, curve, number=99):
    for epoch, loss in enumerate(curve, start=1):
        index, verdict = judge(rule, index, number, epoch, loss)
    return index, verdict


def test_a_hopeless_trial_stops_and_a_better_one_goes_on():
    """Against a best finished loss of 0.2: a curve that flattens at 0.7 stops, one that falls below 0.2 goes on."""
    rule = Extrapolate(max_epochs=27)
    index = study(rule, [falling(floor) for floor in (0.2, 0.3, 0.5)])
    _, verdict = at_rung(rule, index, falling(0.7)[:9])
    assert isinstance(verdict, Stop)
    assert verdict.reason.value > 0.9 == verdict.reason.threshold
    index = study(rule, [falling(floor) for floor in (0.2, 0.3, 0.5)])
    _, verdict = at_rung(rule, index, falling(0.05)[:9])
    assert isinstance(verdict, Continue)
    assert verdict.reason.value < 0.5


def test_the_fit_moves_when_a_point_is_added():
    """All points count: the probability at a rung changes with its last point alone."""
    rule = Extrapolate(max_epochs=27, families=["lin-log"])
    found = []
    for last in (0.56, 0.5, 0.44):
        index = study(rule, [falling(0.3), falling(0.4)])
        _, verdict = at_rung(rule, index, [0.92, 0.78, 0.75, 0.66, 0.67, 0.59, 0.6, 0.53, last])
        found.append(verdict.reason.value)
    assert found[0] > found[1] > found[2]


def test_the_study_teaches_a_prior():
    """After eight whole trials that fall late, a curve that is still high is given more chances than before."""
    late = [[1 - (1 - floor) * (epoch / 27) ** 4 for epoch in range(1, 28)] for floor in np.linspace(0.2, 0.5, 10)]
    found = []
    for prior in ("broad", "study"):
        rule = Extrapolate(max_epochs=27, prior=prior)
        _, verdict = at_rung(rule, study(rule, late), [1 - 0.9 * (epoch / 27) ** 4 for epoch in range(1, 10)])
        found.append(verdict.reason.value)
    assert found[1] < found[0]


def test_the_same_question_has_the_same_answer():
    """What comes after the report changes nothing about its verdict, so a resumed study repeats it."""
    rule = Extrapolate(max_epochs=27)
    index, verdict = at_rung(rule, study(rule, [falling(0.2), falling(0.3)]), falling(0.5)[:9])
    index = rule.fold(index, Reported(trial=50, epoch=27, losses=(0.0,)))
    now = TrialView(number=99, epoch=9, losses=(0.5,), best_loss=0.5)
    assert rule.on_report(index, View(remaining=0), now) == verdict


def test_a_diverged_trial_stops():
    """A loss that is not finite is taken for the end."""
    rule = Extrapolate(max_epochs=27)
    _, verdict = at_rung(
        rule, study(rule, [falling(0.5)]), [0.5, 0.4, 0.3, 0.2, math.inf, math.inf, 0.1, 0.1, math.inf]
    )
    assert isinstance(verdict, Stop)


def test_recalibration_is_monotone():
    """It keeps the order of probabilities, and both ends."""
    found = [recalibrated(p) for p in np.linspace(0, 1, 101)]
    assert all(a <= b for a, b in pairwise(found))
    assert 0 < found[0] < 0.02
    assert 0.98 < found[-1] < 1


def test_a_forecast_is_asked_of_the_rule():
    """Users may ask for the end that is expected: in the study's units, and none before a rung."""
    rule = Extrapolate(max_epochs=27)
    index, _ = at_rung(rule, study(rule, [falling(0.2), falling(0.3)]), falling(0.5)[:9])
    low, high = rule.forecast(index, 99).interval(0.9)
    assert low < 0.5 < high
    assert high - low < 0.3
    index, _ = at_rung(rule, rule.empty(), [0.9, 0.8])
    assert rule.forecast(index, 99) is None
    assert rule.forecast(index, 1) is None


def test_without_a_finished_trial_or_with_few_points_it_goes_on():
    rule = Extrapolate(max_epochs=27)
    _, verdict = at_rung(rule, rule.empty(), falling(0.9)[:9])
    assert verdict == CONTINUE
    _, verdict = at_rung(rule, study(rule, [falling(0.1)]), [0.9])
    assert verdict == CONTINUE


def test_with_few_points_an_outlier_stops():
    """Among more than ten others at the rung: above the third quartile by 1.5 interquartile ranges."""
    rule = Extrapolate(max_epochs=27)
    for others, loss, kind in ((11, 3.0, Stop), (11, 1.4, Continue), (10, 3.0, Continue), (11, math.inf, Stop)):
        index = rule.empty()
        for number in range(others):
            index = rule.fold(index, Reported(trial=number, epoch=1, losses=(number / 10,)))
        _, verdict = judge(rule, index, 99, 1, loss)
        assert isinstance(verdict, kind)


@pytest.mark.parametrize(
    ("settings_", "sentence"),
    [
        ({"p": 1}, "Extrapolate.p: got 1; allowed: a probability above 0 and below 1"),
        ({"p": "high"}, "Extrapolate.p: got 'high'; allowed: a probability above 0 and below 1"),
        ({"prior": "best"}, "Extrapolate.prior: got 'best'; allowed: 'study', 'self', 'broad'"),
        (
            {"families": ["pow5"]},
            (
                f"Extrapolate.families: got ['pow5']; allowed: 'all', or a list of {', '.join(FAMILIES)}"
                " (did you mean 'pow4'?)"
            ),
        ),
        ({"families": []}, f"Extrapolate.families: got []; allowed: 'all', or a list of {', '.join(FAMILIES)}"),
        ({"min_epochs": 28}, "Extrapolate.min_epochs: got 28, above max_epochs 27; allowed: 1 to max_epochs"),
    ],
)
def test_bad_settings(settings_, sentence):
    with pytest.raises(ScheduleError) as caught:
        Extrapolate(**{"max_epochs": 27, **settings_})
    assert str(caught.value) == sentence
