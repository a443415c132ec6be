"""The service says what the ensemble says in process: every rule, batch size and allocation, row by row."""

import itertools
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trainwright.ensemble.combine.calibration import Calibration
from trainwright.ensemble.combine.rules import RULES
from trainwright.serve import Cascade, Deployment, Gear, Gears, Options, Plan, Settings, Unit, parse_devices
from trainwright.serve.matrix import digest_of

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

import numpy_members as members
import served_networks as networks

ALLOCATIONS = {
    "apart": (Unit(members=(0,)), Unit(members=(1,)), Unit(members=(2,))),
    "together": (Unit(members=(0, 1, 2), kind="loop"),),
    "mixed": (Unit(members=(0, 2), kind="vmap"), Unit(members=(1,))),
}
KINDS = {"weighted": "classes", "mixture": "moments"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("allocation", ALLOCATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_and_allocation(tmp_path, rule, allocation):
    """With real networks, calibrated, at batch sizes 1, 8 and 128, and 1 to 1,000 rows."""
    kind = "moments" if rule == "mixture" else "classes"
    found = networks.ensemble(tmp_path, [{}, {}, {}], kind=kind, weights=[0.5, 0.3, 0.2])
    chosen = RULES[rule]
    calibration = Calibration(
        kind="variance" if kind == "moments" else "temperature",
        fitted=1.7,
        applied=1.7,
        gain=1.0,
        standard_error=0.1,
        rows=10,
    )
    found = replace(found, rule=chosen, calibration=calibration)
    batch = {"apart": 8, "together": 128, "mixed": 1}[allocation]
    columns = ALLOCATIONS[allocation]
    devices = parse_devices("cpu:0")
    plan = Plan(ensemble=digest_of(found), devices=devices, units=columns, matrix=((batch,) * len(columns),))
    with Deployment(found, plan) as service:
        for rows in (1, 7, 128, 129, 1000):
            x = networks.inputs(rows, seed=rows)
            np.testing.assert_allclose(service.predict(x), found.predict(x), atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("batch", [1, 3, 16, 128, 512])
@pytest.mark.parametrize("segment_rows", [1, 10, 128])
def test_every_segmentation(tmp_path, batch, segment_rows):
    """Segments smaller and larger than batches, with rows joined and cut."""
    found = members.ensemble(tmp_path, 3, weights=[0.5, 0.3, 0.2])
    units = (Unit(members=(0, 1), kind="loop"), Unit(members=(2,)))
    settings = Settings(segment_rows=segment_rows, max_delay_ms=1.0, queue_rows=100_000)
    with members.Numpy(found, members.plan(found, units, batch=batch), settings=settings) as service:
        asked = [members.inputs(rows, seed=rows) for rows in (*range(1, 40), 127, 128, 129, 300)]
        answers = [service.submit(x) for x in asked]
        for x, answer in zip(asked, answers, strict=True):
            np.testing.assert_allclose(answer.result(120).prediction, members.expected(found, x), atol=1e-12)
        assert service.state()["slots_used"] in {0, 1}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_mixed_requests(tmp_path):
    """From eight threads at once, 1 to 200 rows, with options; every row carries an id by which it is compared."""
    found = members.ensemble(tmp_path, 3, weights=[0.5, 0.3, 0.2])
    units = (Unit(members=(0, 2), kind="loop"), Unit(members=(1,)))
    wrong, done = [], itertools.count()
    settings = Settings(queue_rows=1_000_000)
    with members.Numpy(found, members.plan(found, units, batch=64), settings=settings) as service:

        def client(number):
            draws = np.random.default_rng(number)
            for _ in range(1250):
                rows = int(draws.integers(1, 200) if draws.random() < 0.1 else draws.integers(1, 12))
                x = draws.normal(size=(rows, members.INPUTS)).astype(np.float32)
                x[:, 1] = next(done) % 4096 + np.arange(rows) / 256  # no two rows of a time are alike
                x[:, 1] /= 4096
                few = draws.random() < 0.2
                options = Options(max_members=2 if few else None, uncertainty=bool(draws.random() < 0.1))
                answer = service.submit(x, options).result(120)
                expected = members.expected(found, x, [0, 1] if few else None)
                if answer.degraded or np.abs(answer.prediction - expected).max() > 1e-9:
                    wrong.append((number, rows))

        threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        state = service.state()
        assert state["requests"] == 10_000
        assert state["segments"] < 10_000  # rows of several requests were put together
        assert state["duplicates"] == state["stale"] == 0
    assert wrong == []


class TestCascade:
    @pytest.fixture(scope="class")
    @classmethod
    def served(cls, tmp_path_factory):
        found = members.ensemble(tmp_path_factory.mktemp("cascade"), 4, weights=[0.1, 0.2, 0.3, 0.4])
        units = (Unit(members=(0, 1, 2, 3), kind="loop"),)
        cascade = Cascade(tiers=((0, 1, 2), (3,)), agreement=0.9)
        with members.Numpy(found, members.plan(found, units), cascade=cascade) as service:
            yield service

    def test_rows_stop_where_they_agree(self, served):
        """Rows on which the first tier agrees have its answer, the others that of all members."""
        x, found = members.inputs(500), served.ensemble
        answer = served.submit(x, Options(members=True, uncertainty=True, trace=True)).result(60)
        labels = np.stack([members.predicted(trial, x).argmax(axis=1) for trial in (0, 1, 2)])
        stop = (labels == labels[0]).all(axis=0)  # 0.9 of the weight 0.6 can only be all three
        np.testing.assert_array_equal(answer.tiers, np.where(stop, 0, 1))
        assert 0 < stop.sum() < 500
        expected = np.where(
            stop[:, None], members.expected(found, x, [0, 1, 2]), members.expected(found, x, [0, 1, 2, 3])
        )
        np.testing.assert_allclose(answer.prediction, expected, atol=1e-12)
        np.testing.assert_array_equal(np.isnan(answer.members[3]).all(axis=1), stop)
        assert answer.used == (0, 1, 2, 3)
        assert not answer.degraded
        assert answer.trace["stopped"] == [int(stop.sum()), int((~stop).sum())]
        np.testing.assert_allclose(
            answer.uncertainty.total, answer.uncertainty.aleatoric + answer.uncertainty.epistemic
        )

    def test_many_and_refused(self, served):
        """Many requests climb at once; one that asks for a number of members does not climb."""
        found = served.ensemble
        asked = [members.inputs(1 + number % 30, seed=number) for number in range(60)]
        answers = [served.submit(x) for x in asked]
        for x, answer in zip(asked, answers, strict=True):
            stop = answer.result(60).tiers == 0
            expected = np.where(
                stop[:, None], members.expected(found, x, [0, 1, 2]), members.expected(found, x, [0, 1, 2, 3])
            )
            np.testing.assert_allclose(answer.result().prediction, expected, atol=1e-12)
        two = served.submit(asked[0], Options(max_members=2)).result(60)
        assert two.tiers is None
        assert two.used == (2, 3)


def test_gears(tmp_path):
    """What is asked changes the members that answer, with the weights of their gear."""
    found = members.ensemble(tmp_path, 3, weights=[0.5, 0.3, 0.2])
    table = Gears(
        gears=(
            Gear(members=(0, 1, 2), weights=(0.5, 0.3, 0.2), rows_per_second=1.0),
            Gear(members=(2, 0), weights=(0.25, 0.75), rows_per_second=1e6),
        ),
        memory_seconds=1000.0,
    )
    units = (Unit(members=(0, 1, 2), kind="loop"),)
    with members.Numpy(found, members.plan(found, units), gears=table) as service:
        x = members.inputs(8)
        slow = service.submit(x).result(60)
        assert slow.used == (0, 1, 2)
        service.predict(members.inputs(2000))
        fast = service.submit(x).result(60)
        assert fast.used == (0, 2)
        assert not fast.degraded
        expected = 0.75 * members.predicted(0, x) + 0.25 * members.predicted(2, x)
        np.testing.assert_allclose(fast.prediction, expected, atol=1e-12)
        assert service.state()["gear"]["now"] == 1
