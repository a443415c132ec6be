"""Workers that are killed, stopped or refuse: every request is answered once, right, or says who is missing."""

import gc
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest

from trainwright.errors import DeadlinePassed, NotReady, Overloaded, RequestError, ServeError
from trainwright.serve import DeploymentSettings, Options
from trainwright.serve.placement.units import Unit

sys.path.insert(0, str(Path(__file__).parent))

import numpy_members as members
from numpy_members import order, pids, running, until

FAST = DeploymentSettings(hung_seconds=1.0, backoff_seconds=0.01, failures=50)


def patiently(service, x):
    """Submit until it is admitted."""
    while True:
        try:
            return service.submit(x)
        except Overloaded:  # or NotReady, which is one
            time.sleep(0.01)


def descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def orders(tmp_path):
    (tmp_path / "orders").mkdir()
    return tmp_path / "orders"


two_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two groups of cores are needed")


class TestKilled:
    @pytest.mark.parametrize("word", ["die", "raise"])
    def test_in_a_batch(self, tmp_path, orders, word):
        """A worker that dies over a batch, or says that it has no memory, is replaced and the batch computed again."""
        found = members.ensemble(tmp_path, 2, ordered=[str(orders), None])
        with members.Numpy(found, members.plan(found), settings=FAST) as service:
            order(orders, word, "in batch")
            asked = [members.inputs(1 + number, seed=number) for number in range(30)]
            answers = [service.submit(x) for x in asked]
            for x, answer in zip(asked, answers, strict=True):
                done = answer.result(60)
                assert not done.degraded
                np.testing.assert_allclose(done.prediction, members.expected(found, x), atol=1e-12)
            state = service.state()
            assert state["restarts"] == 1
            assert state["duplicates"] == 0
            until(lambda: service.state()["slots_used"] == 0)

    def test_at_start(self, tmp_path, orders):
        """A worker that dies while it starts is started again; one that always does is named."""
        found = members.ensemble(tmp_path, 1, ordered=str(orders))
        order(orders, "die", "at start")
        settings = DeploymentSettings(backoff_seconds=0.01)
        with members.Numpy(found, members.plan(found), settings=settings) as service:
            x = members.inputs(3)
            np.testing.assert_allclose(service.predict(x), members.expected(found, x), atol=1e-12)
        order(orders, "die", "at start", times=9)
        with pytest.raises(ServeError, match="unit 0: cannot start: its worker ended by SIGKILL"):
            members.Numpy(found, members.plan(found), settings=settings).start()

    @pytest.mark.slow
    def test_any_moment(self, tmp_path):
        """Kills at moments of chance, of several instances of a unit: nothing lost, nothing wrong, nothing twice."""
        found = members.ensemble(tmp_path, 2, seconds=0.002)
        draws = np.random.default_rng(3)
        with members.Numpy(found, members.plan(found), settings=FAST) as service:
            answers = []
            for number in range(400):
                x = members.inputs(int(draws.integers(1, 200)), seed=number)
                answers.append((x, patiently(service, x)))
                victim = pids(service)[int(draws.integers(0, 2))]
                if number % 20 == 10 and victim is not None:
                    os.kill(victim, signal.SIGKILL)
                time.sleep(float(draws.random()) * 0.01)
            for x, answer in answers:
                np.testing.assert_allclose(answer.result(120).prediction, members.expected(found, x), atol=1e-12)
            until(lambda: service.state()["slots_used"] == 0)
            assert service.state()["duplicates"] == 0

    def test_given_up(self, tmp_path, orders):
        """A unit whose workers end three times is lost: its member is missing, and it is said why; the rest answers."""
        found = members.ensemble(tmp_path, 2, weights=[0.3, 0.7], ordered=[str(orders), None])
        settings = DeploymentSettings(backoff_seconds=0.01)
        with members.Numpy(found, members.plan(found), settings=settings) as service:
            order(orders, "die", "in batch", times=3)
            x = members.inputs(200)
            done = service.submit(x).result(60)
            assert done.used == (1,)
            assert done.degraded
            assert done.weight == pytest.approx(0.7)
            assert "SIGKILL" in done.missing[0]
            until(lambda: service.state()["moves"])
            assert service.state()["moves"][0]["refusal"].startswith("unit 0: no other device is left for it")
            np.testing.assert_allclose(done.prediction, members.expected(found, x, [1]), atol=1e-12)
            again = service.submit(x).result(60)
            assert again.missing.keys() == {0}
            assert "it was not moved: unit 0: no other device is left" in again.missing[0]
            assert service.state()["instances"][0]["state"] == "lost"
            until(lambda: service.state()["slots_used"] == 0)

    @two_cores
    def test_placed_anew(self, tmp_path, orders):
        """A lost unit starts on another device; answers lack it and say so until then, and have it afterwards."""
        found = members.ensemble(tmp_path, 2, weights=[0.4, 0.6], ordered=[str(orders), None])
        plan = members.plan(found, devices="cpu:0,cpu:1", matrix=((16, 0), (0, 16)))
        settings = DeploymentSettings(backoff_seconds=0.0, failures=2)
        with members.Numpy(found, plan, settings=settings) as service:
            x = members.inputs(40)
            os.kill(pids(service)[0], signal.SIGKILL)
            until(lambda: service.state()["restarts"] == 1 and service.state()["members"][0]["alive"])
            order(orders, "sleep", "at start")  # of the process on the other device, so that there is a meanwhile
            os.kill(pids(service)[0], signal.SIGKILL)
            until(lambda: service.state()["moves"])
            done = service.submit(x).result(60)
            assert done.used == (1,)
            assert "SIGKILL; it restarts on cpu:1" in done.missing[0]
            np.testing.assert_allclose(done.prediction, members.expected(found, x, [1]), atol=1e-12)
            (orders / "go").touch()
            until(lambda: service.state()["moved"] == 1)
            whole = service.submit(x).result(60)
            assert not whole.degraded
            np.testing.assert_allclose(whole.prediction, members.expected(found, x), atol=1e-12)
            state = service.state()
            assert [(one["unit"], one["from"], one["to"], one["state"]) for one in state["moves"]] == [
                ("0", ["cpu:0"], ["cpu:1"], "done")
            ]
            assert state["plan"]["matrix"] == [[0, 0], [16, 16]]
            assert [one["state"] for one in state["instances"]] == ["lost", "ready", "ready"]
            until(lambda: service.state()["slots_used"] == 0)

    def test_all_at_once(self, tmp_path):
        """With no worker left nothing is admitted, what was admitted is answered, and it recovers."""
        found = members.ensemble(tmp_path, 2, seconds=0.05)
        with members.Numpy(found, members.plan(found), settings=FAST) as service:
            x = members.inputs(100)
            answer = service.submit(x)
            for pid in pids(service):
                os.kill(pid, signal.SIGKILL)
            until(lambda: not service.ready())
            with pytest.raises(NotReady, match="of 2 workers cannot answer now"):
                service.submit(x)
            np.testing.assert_allclose(answer.result(60).prediction, members.expected(found, x), atol=1e-12)
            until(service.ready)
            np.testing.assert_allclose(service.predict(x), members.expected(found, x), atol=1e-12)

    @pytest.mark.slow
    def test_stopped(self, tmp_path, orders):
        """A worker that hangs is ended and replaced."""
        found = members.ensemble(tmp_path, 2, ordered=[str(orders), None])
        with members.Numpy(found, members.plan(found), settings=FAST) as service:
            order(orders, "stop", "in batch")
            x = members.inputs(40)
            np.testing.assert_allclose(service.predict(x), members.expected(found, x), atol=1e-12)
            assert "silent" in service.state()["instances"][0]["why"]

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    @pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
    def test_fifty_restarts(self, tmp_path):
        """After fifty restarts there are as many descriptors as before, and no process but the workers."""
        found = members.ensemble(tmp_path, 1)
        with members.Numpy(
            found, members.plan(found), settings=DeploymentSettings(backoff_seconds=0.0, failures=1000)
        ) as service:
            before = descriptors()
            for number in range(50):
                os.kill(pids(service)[0], signal.SIGKILL)
                until(lambda number=number: service.state()["restarts"] == number + 1 and service.ready())
                x = members.inputs(5, seed=number)
                np.testing.assert_allclose(service.predict(x), members.expected(found, x), atol=1e-12)
            assert descriptors() <= before
            until(lambda: service.state()["slots_used"] == 0)

    @pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
    def test_nothing_is_left(self, tmp_path):
        """After the end: no descriptor, no process, no thread more than before."""
        import threading

        found = members.ensemble(tmp_path, 2)
        gc.collect()  # what other tests have left
        before, threads = descriptors(), threading.active_count()
        for _ in range(2):
            with members.Numpy(found, members.plan(found)) as service:
                service.predict(members.inputs(300))
                workers = pids(service)
        assert descriptors() <= before
        assert threading.active_count() <= threads
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)

    def test_front_killed(self, tmp_path):
        """Workers leave with their front, even one that is killed."""
        found = members.ensemble(tmp_path, 2, seconds=0.2)
        del found
        code = (
            "import sys, time\nfrom pathlib import Path\nimport numpy_members as m\n"
            "found = m.ensemble(Path(sys.argv[1]) / 'own', 2, seconds=0.2)\n"
            "with m.Numpy(found, m.plan(found)) as service:\n"
            "    answer = service.submit(m.inputs(500))\n"
            "    print(*[one['pid'] for one in service.state()['instances']], flush=True)\n"
            "    time.sleep(60)\n"
        )
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        front = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        with front:
            workers = [int(pid) for pid in front.stdout.readline().split()]
            assert len(workers) == 2
            front.kill()
        until(lambda: not any(running(pid) for pid in workers), seconds=5.0)


class TestRefused:
    def test_bad_rows(self, tmp_path):
        """Rows that a member refuses are refused, and rows that came with them are computed without them."""
        found = members.ensemble(tmp_path, 2, seconds=0.02)
        with members.Numpy(found, members.plan(found)) as service:
            good, bad = members.inputs(5), members.inputs(200, seed=1)
            bad[150, 0] = -1
            first = service.submit(good)  # keeps the workers busy, so that the others share segments
            answers = [service.submit(x) for x in (good, bad, good, good)]
            with pytest.raises(RequestError, match=r"trial \d refused the rows \(IndexError: index -1"):
                answers[1].result(60)
            for answer in (first, answers[0], answers[2], answers[3]):
                np.testing.assert_allclose(answer.result(60).prediction, members.expected(found, good), atol=1e-12)
            until(lambda: service.state()["slots_used"] == 0)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """Return a service whose first member takes 0.3 s a batch, the second no time."""
    found = members.ensemble(tmp_path_factory.mktemp("slow"), 2, weights=[0.4, 0.6], seconds=[0.3, 0.0])
    settings = DeploymentSettings(queue_rows=50)
    with members.Numpy(found, members.plan(found, batch=32), settings=settings) as service:
        yield service


class TestLimits:
    def test_deadline(self, slow):
        """At the deadline those that came answer, if they hold the quorum; it says who is missing."""
        x = members.inputs(20)
        done = slow.submit(x, Options(deadline_ms=150)).result(60)
        assert done.used == (1,)
        assert done.missing == {0: "its answer did not come before the deadline"}
        np.testing.assert_allclose(done.prediction, members.expected(slow.ensemble, x, [1]), atol=1e-12)
        until(lambda: slow.state()["slots_used"] == 0)

    def test_deadline_without_quorum(self, slow):
        with pytest.raises(DeadlinePassed, match=r"deadline_ms: 0.001 passed with 0 of 2 members \(0% of the weight\)"):
            slow.submit(members.inputs(20), Options(deadline_ms=0.001)).result(60)

    def test_overload(self, slow):
        """A full queue refuses at once and says when to come again; what was admitted is answered."""
        x = members.inputs(20)
        answers = []
        with pytest.raises(Overloaded, match="20 more were given; allowed: 50; try again") as refused:
            answers += [slow.submit(x) for _ in range(20)]
        assert refused.value.retry_after_seconds > 0
        until(lambda: slow.state()["slots_used"] == slow.state()["waiting_rows"] == 0)
        assert slow.state()["shed"] >= 1

    def test_cancel(self, slow):
        """A request that was cancelled while it waited is let go."""
        x = members.inputs(32)
        answers = []
        for _ in range(3):  # two are at the worker then, and one waits
            until(lambda: slow.state()["waiting_rows"] == 0)
            answers.append(slow.submit(x))
        assert answers[2].cancel()
        for answer in answers[:2]:
            assert not answer.result(60).degraded
        with pytest.raises(CancelledError):
            answers[2].result(60)
        until(lambda: slow.state()["open"] == slow.state()["slots_used"] == 0)


class TestDrain:
    def test_under_load(self, tmp_path):
        """Draining refuses new requests and answers all that were admitted."""
        found = members.ensemble(tmp_path, 2, seconds=0.01)
        service = members.Numpy(found, members.plan(found)).start()
        asked = [members.inputs(1 + number % 40, seed=number) for number in range(60)]
        answers = [service.submit(x) for x in asked]
        service.drain(60.0)
        with pytest.raises(NotReady, match="is draining"):
            service.submit(asked[0])
        for x, answer in zip(asked, answers, strict=True):
            np.testing.assert_allclose(answer.result(0).prediction, members.expected(found, x), atol=1e-12)

    def test_at_once(self, tmp_path):
        """With no time left, what is under way is refused, not forgotten."""
        found = members.ensemble(tmp_path, 1, seconds=0.2)
        service = members.Numpy(found, members.plan(found)).start()
        answers = [service.submit(members.inputs(100)) for _ in range(5)]
        service.drain(0.0)
        refused = 0
        for answer in answers:
            try:
                answer.result(5)
            except NotReady:
                refused += 1
        assert refused >= 4


class TestStrict:
    def test_all_or_nothing(self, tmp_path):
        found = members.ensemble(tmp_path, 2, seconds=[0.5, 0.0])
        settings = DeploymentSettings(strict=True)
        with members.Numpy(found, members.plan(found), settings=settings) as service:
            with pytest.raises(NotReady, match=r"1 of 2 members .* and is strict"):
                service.submit(members.inputs(3), Options(deadline_ms=200)).result(60)
            assert not service.submit(members.inputs(3)).result(60).degraded


class TestParallel:
    @two_cores
    def test_instances_share_the_work(self, tmp_path):
        """Two instances of a unit each do some of the segments, and a fused unit beside them all."""
        found = members.ensemble(tmp_path, 3, seconds=0.005)
        units = (Unit(members=(0, 2)), Unit(members=(1,)))
        with members.Numpy(found, members.plan(found, units, devices="cpu:0,cpu:1")) as service:
            x = members.inputs(1000)

            def shared():
                np.testing.assert_allclose(service.predict(x), members.expected(found, x), atol=1e-12)
                return all(one["batches"] > 0 for one in service.state()["instances"])

            until(shared)  # where others use the processors, one instance may do a whole request
