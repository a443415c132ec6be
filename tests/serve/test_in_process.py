"""A deployment without worker processes: answers, batches of many clients, a queue, deadlines, an end."""

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from allocation_for_tests import single_units
from served_networks import ensemble, inputs

from trainwright.errors import AllocationError, DeadlinePassed, NotReady, Overloaded, RequestError
from trainwright.serve import Deployment, DeploymentPlan, DeploymentSettings, Options

X = inputs(20)


def serve(found, **settings):
    return Deployment(
        found, DeploymentPlan.simple(found, "cpu", batch=8, in_process=True), settings=DeploymentSettings(**settings)
    )


@pytest.fixture
def held(monkeypatch):
    """Return events: the first is set when a network computes rows that begin with 7, which waits for the second."""
    begun, go = threading.Event(), threading.Event()
    linear = torch.nn.functional.linear

    def waiting(x, weight, bias=None):
        if (x[:, 0] == 7).any():
            begun.set()
            go.wait(60)
        return linear(x, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", waiting)
    yield begun, go
    go.set()


@pytest.mark.parametrize("rule", ["weighted", "mean"])
def test_answers(tmp_path, rule):
    """Of all rules and options, from several threads, in parts and in batches."""
    found = ensemble(tmp_path, [{}, {"hidden": 4}, {"hidden": 6}], weights=[0.3, 0.4, 0.3], rule=rule)
    wrong = []
    with serve(found) as service:

        def client(seed):
            for rows in (1, 3, 20):
                x = inputs(rows, seed=seed) if seed else X[:rows]
                options = Options(members=bool(seed % 2), uncertainty=seed % 3 == 0)
                answer = service.submit(x, options).result(60)
                if not np.allclose(answer.prediction, found.predict(x), atol=1e-6):
                    wrong.append(seed)

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        answer = service.submit(X, Options(members=True)).result(60)
        assert (answer.used, answer.weight, answer.degraded) == ((10, 11, 12), 1.0, False)
        assert set(answer.members) == {10, 11, 12}
        state = service.state()
        assert (state["requests"], state["open"], state["waiting_rows"]) == (37, 0, 0)
        assert [one["state"] for one in state["instances"]] == ["ready"]


def test_bad_rows_spoil_only_their_own_request(tmp_path, held):
    """Requests that wait are computed together; if that is refused, each alone."""
    begun, go = held
    found = ensemble(tmp_path, [{}, {"hidden": 4}])
    first, bad = X[:1].copy(), X[:2].copy()
    first[0, 0], bad[1, 2] = 7, np.nan
    with serve(found) as service:
        threading.Thread(target=service.submit, args=(first,)).start()
        begun.wait(60)
        waiting = [service.submit(x) for x in (X[:2], bad, X[2:5])]
        go.set()
        np.testing.assert_allclose(waiting[0].result(60).prediction, found.predict(X[:2]), atol=1e-6)
        np.testing.assert_allclose(waiting[2].result(60).prediction, found.predict(X[2:5]), atol=1e-6)
        with pytest.raises(RequestError, match="row 1 of trial 10 is not finite"):
            waiting[1].result(60)
        with pytest.raises(RequestError, match=r"got shape \(2, 3\); allowed: \[N, 5\]"):
            service.submit(X[:2, :3])


def test_rows_that_a_network_refuses(tmp_path, held):
    """They end their own request only, alone or computed together with others."""
    begun, go = held
    found = ensemble(tmp_path, [{"seconds": 0.0}], kind="slow")
    first, bad = X[:1].copy(), X[:2].copy()
    first[0, 0], bad[1, 0] = 7, -1
    with serve(found) as service:
        threading.Thread(target=service.submit, args=(first,)).start()
        begun.wait(60)
        waiting = [service.submit(x) for x in (X[:2], bad, X[2:5])]
        go.set()
        np.testing.assert_allclose(waiting[0].result(60).prediction, found.predict(X[:2]), atol=1e-6)
        np.testing.assert_allclose(waiting[2].result(60).prediction, found.predict(X[2:5]), atol=1e-6)
        for refused in (waiting[1], service.submit(bad)):
            with pytest.raises(RequestError, match=r"trial 10 refused the rows \(IndexError: index out of range"):
                refused.result(60)


def test_queue_deadline_end(tmp_path, held):
    """Rows beyond the queue are refused, those whose time is up are not computed, and the end refuses all."""
    begun, go = held
    found = ensemble(tmp_path, [{}])
    first = X[:1].copy()
    first[0, 0] = 7
    with serve(found, queue_rows=10) as service:
        thread = threading.Thread(target=service.submit, args=(first,))
        thread.start()
        begun.wait(60)
        late = service.submit(X[:9], Options(deadline_ms=1.0))
        gone = service.submit(X[:1])
        with pytest.raises(Overloaded, match="10 rows wait and 1 more were given; allowed: 10"):
            service.submit(X[:1])
        assert service.state()["open"] == 3
        assert gone.cancel()
        threading.Timer(0.1, go.set).start()
        with pytest.raises(DeadlinePassed, match="deadline_ms: 1 passed"):
            late.result(60)
        thread.join()
        service.drain(5.0)
        assert service.state()["open"] == 0
        assert not service.ready()
        with pytest.raises(NotReady, match="is draining"):
            service.submit(X)


def test_an_event_loop_does_not_compute(tmp_path, held):
    """Its other connections go on while a request is computed."""
    _, go = held
    found = ensemble(tmp_path, [{}])
    x = X[:3].copy()
    x[0, 0] = 7

    async def ask(service):
        future = asyncio.wrap_future(service.submit(x))
        go.set()  # which nobody would, had `submit` computed
        return (await future).prediction

    with serve(found) as service:
        np.testing.assert_allclose(asyncio.run(ask(service)), found.predict(x), atol=1e-6)


def test_a_plan_without_processes_has_one_group_of_cores(tmp_path):
    found = ensemble(tmp_path, [{}, {}])
    simple = DeploymentPlan.simple(found, "cpu", in_process=True)
    assert DeploymentPlan.from_json(simple.to_json()) == simple == Deployment(found).plan
    with pytest.raises(AllocationError, match="in_process: got 2 instances"):
        replace(simple, units=single_units(2), matrix=((8, 8),))


@pytest.mark.parametrize(
    ("milliseconds", "batch"),
    [
        ({1: 1.0, 4: 1.1, 16: 1.5, 64: 2.0, 256: 4.0, 512: 8.0}, 256),
        ({1: 1.0, 4: 1.1, 16: 1.5, 64: 2.0, 256: 4.0, 512: 7.0}, 512),
        ({1: 2.0, 4: 4.0, 16: 16.5, 64: 64.0, 256: 300.0, 512: 900.0}, 4),
    ],
)
def test_the_batch_is_the_smallest_of_the_fastest(tmp_path, monkeypatch, milliseconds, batch):

    def timed(calls, seconds, clock=None):
        return [milliseconds[len(call.args[0])] / 1e3 for call in calls]

    monkeypatch.setattr("trainwright.serve.runtime.in_process.time_calls", timed)
    with Deployment(ensemble(tmp_path, [{}])) as service:
        assert service.state()["instances"][0]["batch"] == batch
