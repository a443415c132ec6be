"""The policies of serving, without processes: health of a worker, and limits of settings."""

import pytest

from trainwright.errors import ServeConfigError
from trainwright.serve import DeploymentSettings
from trainwright.serve.runtime.worker_slots import WorkerHealth


class TestHealth:
    def test_back_off_and_giving_up(self):
        """Restarts come later and later, a third end within the window gives up, ends long ago are forgotten."""
        health = WorkerHealth(settings=DeploymentSettings(backoff_seconds=0.5, failures=3, failure_seconds=60.0))
        assert [health.restart_delay(0.0), health.restart_delay(1.0), health.restart_delay(2.0)] == [0.5, 1.0, None]
        assert health.restart_delay(100.0) == 0.5

    def test_hung(self):
        """Ten medians and some seconds of silence."""
        health = WorkerHealth(settings=DeploymentSettings(hung_seconds=5.0))
        assert not health.is_hung(5.0)
        for seconds in (1.0, 1.0, 90.0):
            health.batch(seconds)
        assert not health.is_hung(15.0)
        assert health.is_hung(15.1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"queue_rows": 1.5}, "queue_rows: got 1.5"),
        ({"quorum": 0.0}, "quorum: got 0.0; allowed: a number above 0 and at most 1"),
        ({"deadline_ms": 0.0}, "deadline_ms: got 0.0; allowed: a number > 0"),
        ({"hung_seconds": float("nan")}, "hung_seconds: got nan"),
    ],
)
def test_settings_out_of_range(settings, sentence):
    with pytest.raises(ServeConfigError, match=sentence):
        DeploymentSettings(**settings)
