"""The policies of serving, without processes: health of a worker, and limits of settings."""

from concurrent.futures import CancelledError

import numpy as np
import numpy_members as members
import pytest

from trainwright.errors import NotReady, RequestError, ServeConfigError, ServeError
from trainwright.serve import DeploymentSettings
from trainwright.serve.runtime.batching import Request
from trainwright.serve.runtime.responses import answer_request, incomplete_refusal
from trainwright.serve.runtime.worker_slots import WorkerHealth
from trainwright.serve.service import Options


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


def test_an_answer_below_the_quorum_is_none(tmp_path):
    """Of two members the heavier one answers alone, the lighter one does not: the refusal says what is missing."""
    found = members.ensemble(tmp_path, 2, weights=[0.4, 0.6])
    request = Request(x=members.inputs(1), options=Options(), admitted=0.0)

    def refusal(missing, **settings):
        return incomplete_refusal(found, request, {missing: "it died"}, DeploymentSettings(**settings), late=False)

    assert refusal(0) is None
    assert refusal(1, quorum=0.4) is None
    refused = refusal(1)
    assert isinstance(refused, NotReady)
    assert "1 of 2 members (40% of the weight); needed: 50% of the weight; try again" in str(refused)


def test_a_request_ends_in_an_answer_or_in_what_was_wrong(tmp_path):
    """Of those that came; a refusal, rows that a member cannot answer, and a broken combination; or nothing is told."""
    found, x = members.ensemble(tmp_path, 2, weights=[0.4, 0.6]), members.inputs(3)

    def ended(predictions, **told):
        request = Request(x=x, options=Options(), admitted=0.0, predictions=predictions, **told)
        answer_request(found, request)
        return request.future

    both = {member: members.predicted(member, x) for member in (0, 1)}
    answer = ended(both).result(0)
    assert (answer.used, answer.missing, answer.weight) == ((0, 1), {}, 1.0)
    np.testing.assert_allclose(answer.prediction, members.expected(found, x), atol=1e-12)
    answer = ended({1: both[1]}, missing={0: "it died"}).result(0)
    assert (answer.used, answer.missing, answer.weight) == ((1,), {0: "it died"}, 0.6)
    np.testing.assert_allclose(answer.prediction, members.expected(found, x, [1]), atol=1e-12)
    for wrong, kind, sentence in (
        (ended(both, refusal=NotReady("it ends", 1.0)), NotReady, "it ends"),
        (ended({0: both[0], 1: np.full((3, 3), np.nan)}), RequestError, "request"),
        (ended({0: both[0], 1: None}), ServeError, "request: cannot be combined"),
    ):
        with pytest.raises(kind, match=sentence):
            wrong.result(0)
    cancelled = Request(x=x, options=Options(), admitted=0.0, predictions=both)
    cancelled.future.cancel()
    answer_request(found, cancelled)
    with pytest.raises(CancelledError):
        cancelled.future.result(0)
