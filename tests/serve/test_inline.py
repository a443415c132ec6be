"""A service in threads of this process: the ensemble's answers, a bounded queue, deadlines, and an end."""

import threading

import numpy as np
import pytest

pytest.importorskip("torch")

from served_networks import ensemble, inputs

from trainwright.errors import DeadlinePassed, NotReady, Overloaded, RequestError, ServeConfigError
from trainwright.serve import Inline, Options

X = inputs(20)


def test_answers(tmp_path):
    """From several threads too; the heaviest members are those asked for, of equals the first."""
    found = ensemble(tmp_path, [{}, {"hidden": 4}, {"hidden": 6}], weights=[0.3, 0.4, 0.3])
    with Inline(found, threads=3) as service:
        waiting = [service.submit(X[:rows], Options()) for rows in range(1, 20)]
        for rows, one in enumerate(waiting, start=1):
            np.testing.assert_allclose(one.result(60).prediction, found.predict(X[:rows]), atol=1e-6)
        answer = service.submit(X, Options(max_members=2)).result(60)
        assert (answer.used, answer.weight, answer.degraded) == ((10, 11), 1.0, False)
        with pytest.raises(RequestError, match=r"got shape \[20, 3\] of float32, which trial 10 cannot take"):
            service.submit(X[:, :3], Options()).result(60)
        with pytest.raises(RequestError, match="row 0 of trial 10 is not finite"):
            service.submit(np.full_like(X, np.nan), Options()).result(60)
        assert service.state()["queue_rows"] == 0


def test_queue_deadline_end(tmp_path):
    """Rows beyond the queue are refused, those whose time is up are not computed, and the end refuses all."""
    found = ensemble(tmp_path, [{}])
    begun, go = threading.Event(), threading.Event()
    network = found.networks[0]

    def held(module, arguments):
        begun.set()
        go.wait(60)

    handle = network.register_forward_pre_hook(held)
    with Inline(found, queue_rows=30) as service:
        first = service.submit(X, Options())
        begun.wait(60)
        late = service.submit(X[:10], Options(deadline_ms=1.0))
        with pytest.raises(Overloaded, match="queue: holds 30 rows, the request has 1; allowed: 30"):
            service.submit(X[:1], Options())
        assert service.state()["requests"] == 2
        threading.Timer(0.1, go.set).start()
        with pytest.raises(DeadlinePassed, match="deadline_ms"):
            late.result(60)
        assert len(first.result(60).prediction) == 20
        handle.remove()
        service.drain(5.0)
        assert not service.ready()
        with pytest.raises(NotReady, match="is ending"):
            service.submit(X, Options())


@pytest.mark.parametrize("settings", [{"threads": 0}, {"queue_rows": 0}, {"deadline_ms": 0.0}])
def test_refusals(tmp_path, settings):
    with pytest.raises(ServeConfigError, match=f"Inline, {next(iter(settings))}: got 0"):
        Inline(ensemble(tmp_path, [{}]), **settings)
