"""Fitting constants of a cost model: known constants come back, outliers do not pull, mistakes are refused."""

import numpy as np
import pytest
from benchmarks.plan.fit import FitConstant, fit_constants, leave_out
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.errors import InputError

SIZES = np.array([1e3, 1e4, 1e5, 1e6, 1e7, 1e8])
ALPHA = FitConstant(name="alpha", start=1e-5, low=1e-7, high=1e-3)
BETA = FitConstant(name="beta", start=1e-9, low=1e-12, high=1e-7)


def line(values):
    return values["alpha"] + values["beta"] * SIZES


class TestFit:
    """`fit_constants` on a model whose constants are known."""

    @settings(max_examples=5)
    @given(alpha=st.floats(1e-6, 1e-4), beta=st.floats(1e-11, 1e-8))
    def test_known_constants_come_back(self, alpha, beta):
        """Measurements made by the model itself are met, and its constants found."""
        fit = fit_constants((ALPHA, BETA), line, line({"alpha": alpha, "beta": beta}), starts=2)
        assert fit.values["alpha"] == pytest.approx(alpha, rel=1e-3)
        assert fit.values["beta"] == pytest.approx(beta, rel=1e-3)
        assert fit.error < 1e-3
        assert not fit.at_bounds
        assert not fit.uncertain

    def test_an_outlier_does_not_pull(self):
        """One measurement of six that is ten times too long changes the constants by less than 5 %."""
        truth = {"alpha": 2e-5, "beta": 1e-10}
        measured = line(truth)
        measured[3] *= 10
        fit = fit_constants((ALPHA, BETA), line, measured)
        assert fit.values == pytest.approx(truth, rel=0.05)
        assert max(np.abs(fit.residuals)) == pytest.approx(np.log(10), rel=0.05)

    def test_intervals_hold_what_they_say(self):
        """Of new measurements with 10 % of noise nine of ten lie inside, of a higher level more."""
        truth = {"alpha": 2e-5, "beta": 1e-10}
        noise = np.exp(0.1 * np.random.default_rng(0).standard_normal((400, len(SIZES))))

        def repeated(values):
            return np.tile(line(values), 200)

        fit = fit_constants((ALPHA, BETA), repeated, (line(truth) * noise[:200]).ravel(), starts=1)
        low, high = fit.interval(line(fit.values))
        inside = (low <= line(truth) * noise[200:]) & (line(truth) * noise[200:] <= high)
        assert 0.85 < inside.mean() < 0.95
        narrow, wide = (np.ptp(fit.interval([1.0], level=level)) for level in (0.5, 0.95))
        assert narrow < high[0] / line(fit.values)[0] - low[0] / line(fit.values)[0] < wide
        with pytest.raises(InputError, match="level: got 1; allowed: a number between 0 and 1"):
            fit.interval([1.0], level=1)

    def test_what_measurements_do_not_say_is_named(self):
        """A constant that nothing depends on is uncertain; one that wants to leave its range is at a bound."""
        idle = FitConstant(name="idle", start=1.0, low=0.1, high=10.0)
        narrow = FitConstant(name="alpha", start=1e-6, low=1e-7, high=2e-6)
        fit = fit_constants((narrow, BETA, idle), line, line({"alpha": 1e-4, "beta": 1e-10}))
        assert fit.uncertain == ("idle",)
        assert "alpha" in fit.at_bounds

    def test_equal_seeds_give_equal_constants(self):
        """The search is deterministic, and other starts find the same minimum."""
        measured = line({"alpha": 3e-5, "beta": 4e-10}) * np.array([1.1, 0.9, 1.05, 1.0, 0.95, 1.02])
        one, same, other = (fit_constants((ALPHA, BETA), line, measured, seed=seed) for seed in (0, 0, 7))
        assert one == same
        assert other.values == pytest.approx(one.values, rel=1e-2)


class TestLeaveOut:
    """`leave_out` fits on some measurements and predicts all."""

    def test_held_measurements_change_nothing(self):
        """Whatever is written for measurements that are held out, the constants stay."""
        measured = line({"alpha": 3e-5, "beta": 4e-10})
        held = np.array([False, False, False, False, True, True])
        fit, predicted = leave_out((ALPHA, BETA), line, measured, held)
        wrong = np.where(held, 7.0, measured)
        assert leave_out((ALPHA, BETA), line, wrong, held)[0] == fit
        assert predicted == pytest.approx(measured, rel=1e-2)
        assert len(fit.residuals) == 4

    def test_a_mask_of_another_length(self):
        """The mask has one entry a measurement."""
        with pytest.raises(InputError, match="2 entries for 6"):
            leave_out((ALPHA, BETA), line, line({"alpha": 1.0, "beta": 1.0}), [True, False])


class TestReach:
    """Intervals beyond the covariates of a fit, from fits without their ends."""

    def bent(self):
        """Fit a line to seconds that grow faster than it, at eight sizes, with the size as covariate."""
        sizes = 2.0 ** np.arange(8)

        def predict(values):
            return values["rate"] * sizes

        rate = FitConstant(name="rate", start=1.0, low=0.01, high=100.0)
        other = np.ones(len(sizes))
        return sizes, fit_constants((rate,), predict, sizes**1.2, covariates={"size": sizes, "other": other})

    def test_beyond_the_range_is_wider(self):
        """Inside only residuals count; outside it grows by the doublings and holds what residuals would not."""
        _, fit = self.bent()
        one = np.ones(3)
        places = np.array([64.0, 256.0, 1024.0])
        predicted = fit.values["rate"] * places
        low, high = fit.interval(predicted, covariates={"size": places, "other": one})
        margins = np.log(high / predicted)
        assert margins[0] == pytest.approx(np.log(fit.interval([1.0], covariates={"size": 1.0, "other": 1.0})[1][0]))
        assert margins[2] / margins[1] == pytest.approx((1 + 3) / (1 + 1))
        assert low[2] <= places[2] ** 1.2 <= high[2]
        assert places[2] ** 1.2 > predicted[2] * np.exp(margins[0])

    def test_scores_are_those_of_fits_without_an_end(self):
        """The lowest and the highest size are each predicted by the others, one doubling away."""
        sizes, fit = self.bent()
        found = fit.reach["size"]
        assert (found.low, found.high) == (1.0, 128.0)
        rate = FitConstant(name="rate", start=1.0, low=0.01, high=100.0)
        for place, score in zip((0, 7), found.scores, strict=True):
            _, predicted = leave_out((rate,), lambda v: v["rate"] * sizes, sizes**1.2, np.arange(8) == place, starts=1)
            assert score == pytest.approx(abs(np.log(predicted[place] / sizes[place] ** 1.2)) / 2)

    def test_a_covariate_of_one_value_reaches_as_badly_as_the_worst(self):
        """Nothing of it could be left out, and what could be says how far the model reaches."""
        _, fit = self.bent()
        assert fit.reach["other"].scores == ()
        by_size, by_other = (
            fit.interval([1.0], covariates=each)[1]
            for each in ({"size": 256.0, "other": 1.0}, {"size": 64.0, "other": 2.0})
        )
        assert by_other == pytest.approx(by_size)

    def test_nothing_left_out_is_thirty_percent_a_doubling(self):
        """One measurement has no ends; what was never measured errs by 30 % at least."""
        fit = fit_constants((ALPHA,), lambda v: [v["alpha"]], [1e-5], covariates={"devices": [4]})
        assert fit.interval([1.0], covariates={"devices": [8]})[1] == pytest.approx([1.3**2])

    @pytest.mark.parametrize(
        ("covariates", "words"),
        [({"size": [1.0]}, "those of the fit"), ({"size": [1.0], "other": [0.0]}, "above 0")],
    )
    def test_refused(self, covariates, words):
        """Every covariate of the fit is asked for, and is above 0; columns are as long as the measurements."""
        _, fit = self.bent()
        with pytest.raises(InputError, match=words):
            fit.interval([1.0], covariates=covariates)
        with pytest.raises(InputError, match="2 entries for 1"):
            fit_constants((ALPHA,), lambda v: [v["alpha"]], [1e-5], covariates={"devices": [4, 8]})


class TestBadInput:
    """Refused with what, value and what is allowed."""

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({"start": 1.0, "low": 0.0, "high": 2.0}, "low < high"),
            ({"start": 1.0, "low": 2.0, "high": 1.0}, "low < high"),
            ({"start": 3.0, "low": 1.0, "high": 2.0}, "1.0 to 2.0"),
        ],
    )
    def test_constant(self, values, words):
        """A range above 0 that holds the start."""
        with pytest.raises(InputError, match=words):
            FitConstant(name="alpha", **values)

    @pytest.mark.parametrize("measured", [[], [1.0, -1.0], [float("nan")], [[1.0]]])
    def test_measured(self, measured):
        """Seconds above 0."""
        with pytest.raises(InputError, match="measured"):
            fit_constants((ALPHA,), line, measured)

    def test_predictions(self):
        """One finite prediction above 0 for every measurement."""
        with pytest.raises(InputError, match="predictions"):
            fit_constants((ALPHA,), lambda values: [values["alpha"]], [1.0, 2.0])
        with pytest.raises(InputError, match="predictions"):
            fit_constants((ALPHA,), lambda _: [0.0], [1.0])

    @pytest.mark.parametrize("constants", [(), (ALPHA, ALPHA)])
    def test_constants(self, constants):
        """At least one, each name once."""
        with pytest.raises(InputError, match="each name once"):
            fit_constants(constants, line, [1.0])
