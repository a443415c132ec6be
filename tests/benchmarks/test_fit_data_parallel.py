"""Data-parallel steps fitted from measurements: known machines come back, what was not measured is said."""

import numpy as np
import pytest
from benchmarks.plan.fit_data_parallel import DataParallelSteps, fit_data_parallel

from trainwright.errors import InputError

NODE = 4
COUNTS = np.array([1, 2, 4, 8, 16, 32])
SAMPLES = np.array([16, 32, 64, 128])


def machine(devices, samples, *, alpha=2e-4, message=0.03):
    """Return the seconds of a machine with nodes of four: 4 ms a step, 1 ms a sample, the network ten times slower."""
    devices, samples = np.asarray(devices, dtype=float), np.asarray(samples, dtype=float)
    computation = 0.004 + 0.001 * samples
    slower = np.where(devices > NODE, 10.0, 1.0)
    exchange = 2 * (devices - 1) * (alpha * slower + message / 3 * slower / devices)
    return computation + np.where(devices > 1, np.maximum(exchange - 0.5 * computation, 0.2 * exchange), 0.0)


def grid(counts=COUNTS, samples=SAMPLES):
    """Return the steps of every number of devices with every number of samples a device, and their seconds."""
    devices, each = (column.ravel() for column in np.meshgrid(counts, samples))
    steps = DataParallelSteps(devices=devices, batch=devices * each, nodes=np.ceil(devices / NODE))
    return steps, machine(devices, each)


@pytest.fixture(scope="module")
def fitted():
    return fit_data_parallel(*grid())


class TestFit:
    """What comes back from a machine that the model describes."""

    def test_known_constants_come_back(self, fitted):
        """Links, overlap and computation are found, and other numbers of devices and samples predicted."""
        assert fitted.fit.values["hidden"] == pytest.approx(0.5, rel=0.02)
        assert fitted.fit.values["last"] == pytest.approx(0.2, rel=0.02)
        assert fitted.fit.values["network_message"] == pytest.approx(0.1, rel=0.02)
        assert fitted.samples == tuple(SAMPLES)
        others = DataParallelSteps(devices=[3, 12, 64], batch=np.array([3, 12, 64]) * 48, nodes=[1, 3, 16])
        assert fitted.seconds(others) == pytest.approx(machine([3, 12, 64], 48), rel=0.02)

    def test_beyond_the_samples_measured(self, fitted):
        """More samples a device take proportionally longer, fewer no less than the fewest."""
        steps = DataParallelSteps(devices=1, batch=[8, 16, 128, 256])
        fewer, least, most, more = fitted.seconds(steps)
        assert fewer == least
        assert more == pytest.approx(2 * most)

    def test_one_batch_on_all_numbers(self):
        """Strong scaling has other samples on each number: the least and the most get a constant, straight between."""
        devices = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])
        steps = DataParallelSteps(devices=devices, batch=768, nodes=np.ceil(devices / NODE))
        fit = fit_data_parallel(steps, machine(devices, 768 / devices))
        assert fit.samples == (12.0, 768.0)
        assert max(np.abs(fit.fit.residuals)) < 0.15

    def test_repeats_count_once(self):
        """A straggler among three equal runs changes nothing but the residuals, which have all of them."""
        steps, seconds = grid(COUNTS[:3])
        columns = np.repeat(steps.columns, 3, axis=0).T
        thrice = np.repeat(seconds, 3)
        thrice[2] *= 9
        fit = fit_data_parallel(
            DataParallelSteps(devices=columns[0], batch=columns[1], nodes=columns[2]), thrice, starts=1
        )
        assert fit.fit.values == pytest.approx(fit_data_parallel(steps, seconds, starts=1).fit.values)
        assert fit.fit.residuals[2] == pytest.approx(-np.log(9), rel=0.05)

    def test_intervals_widen_beyond(self, fitted):
        """Numbers of devices that were measured get the narrowest factor, twice and eight times as many a wider one."""
        steps = DataParallelSteps(devices=[32, 64, 256], batch=np.array([32, 64, 256]) * 32, nodes=[8, 16, 64])
        low, high = fitted.interval(steps)
        factors = high / fitted.seconds(steps)
        assert np.all(np.diff(factors) > 0)
        assert np.all((low <= machine([32, 64, 256], 32)) & (machine([32, 64, 256], 32) <= high))


class TestCurve:
    """The scaling curve of measured steps."""

    def test_curve(self, fitted):
        """Nodes are filled one after the other; seconds and interval are those of the steps."""
        curve = fitted.curve(batch=512, devices=(16, 1, 4), per_node=NODE)
        assert curve.devices == (1, 4, 16)
        steps = DataParallelSteps(devices=[1, 4, 16], batch=512, nodes=[1, 1, 4])
        assert curve.seconds == pytest.approx(fitted.seconds(steps))
        assert curve.low == pytest.approx(fitted.interval(steps)[0])
        assert curve.speedups()[4] == pytest.approx(curve.seconds[0] / curve.seconds[1])


class TestBadInput:
    """Refused with what, value and what is allowed."""

    def test_links_that_were_not_measured(self):
        """From one node nothing is known of several, and a fit of one node says so."""
        fit = fit_data_parallel(*grid(COUNTS[:3]))
        with pytest.raises(InputError, match=r"got 8 devices on 2 nodes; .* several devices on several nodes"):
            fit.curve(batch=512, devices=(1, 8), per_node=NODE)

    def test_too_few_settings(self):
        """Constants are not guessed."""
        with pytest.raises(InputError, match="got 3 settings for 5 constants"):
            fit_data_parallel(*grid(COUNTS[:3], SAMPLES[:1]))

    @pytest.mark.parametrize(
        ("columns", "words"),
        [
            ({"devices": [1, 2], "batch": [1, 2, 3]}, "one length"),
            ({"devices": ["two"], "batch": [4]}, "numbers"),
            ({"devices": [2], "batch": [1]}, "batch: got"),
            ({"devices": [2], "batch": [4], "nodes": [3]}, "devices: got"),
            ({"devices": [2], "batch": [4], "nodes": [0]}, "nodes: got"),
        ],
    )
    def test_columns(self, columns, words):
        """Columns of one length with nodes <= devices <= batch."""
        with pytest.raises(InputError, match=words):
            DataParallelSteps(**columns)

    def test_measured(self):
        """One measurement a step."""
        with pytest.raises(InputError, match="got 1 seconds for 24 steps"):
            fit_data_parallel(grid()[0], [1.0])
