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
from trainwright.ensemble.combine.stacking import Stacking
from trainwright.serve import Deployment, DeploymentPlan, DeploymentSettings, Options
from trainwright.serve.placement.deployment_plan import digest_of
from trainwright.serve.placement.devices import parse_devices
from trainwright.serve.placement.units import Unit

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

import numpy_members as members
import served_networks as networks

ALLOCATIONS = {
    "apart": (Unit(members=(0,)), Unit(members=(1,)), Unit(members=(2,))),
    "together": (Unit(members=(0, 1, 2)),),
    "mixed": (Unit(members=(0, 2)), Unit(members=(1,))),
}
KINDS = {"weighted": "classes", "mixture": "moments"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("allocation", ALLOCATIONS)
@pytest.mark.parametrize("rule", [*(rule for rule in RULES if rule != "linear")])
def test_every_rule_and_allocation(tmp_path, rule, allocation):
    """With real networks, calibrated, at batch sizes 1, 8 and 128, and 1 to 1,000 rows."""
    kind = "moments" if rule == "mixture" else "classes"
    found = networks.ensemble(tmp_path, [{}, {}, {}], kind=kind, weights=[0.5, 0.3, 0.2])
    chosen = Stacking(factors=(0.5, 0.2, 0.4), offsets=(0.1, 0.0, 0.0)) if rule == "stacking" else RULES[rule]
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
    plan = DeploymentPlan(ensemble=digest_of(found), devices=devices, units=columns, matrix=((batch,) * len(columns),))
    with Deployment(found, plan) as service:
        for rows in (1, 7, 128, 129, 1000):
            x = networks.inputs(rows, seed=rows)
            np.testing.assert_allclose(service.predict(x), found.predict(x), atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("batch", [1, 3, 16, 128, 512])
@pytest.mark.parametrize("other", [1, 10, 128])
def test_every_segmentation(tmp_path, batch, other):
    """Units with batches of their own: segments have the rows of the greater one, and are cut for the other."""
    found = members.ensemble(tmp_path, 3, weights=[0.5, 0.3, 0.2])
    units = (Unit(members=(0, 1)), Unit(members=(2,)))
    settings = DeploymentSettings(queue_rows=100_000)
    plan = members.plan(found, units, matrix=((batch, other),))
    with members.Numpy(found, plan, settings=settings) as service:
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
    units = (Unit(members=(0, 2)), Unit(members=(1,)))
    wrong, done = [], itertools.count()
    settings = DeploymentSettings(queue_rows=1_000_000)
    with members.Numpy(found, members.plan(found, units, batch=64), settings=settings) as service:

        def client(number):
            draws = np.random.default_rng(number)
            for _ in range(1250):
                rows = int(draws.integers(1, 200) if draws.random() < 0.1 else draws.integers(1, 12))
                x = draws.normal(size=(rows, members.INPUTS)).astype(np.float32)
                x[:, 1] = next(done) % 4096 + np.arange(rows) / 256  # no two rows of a time are alike
                x[:, 1] /= 4096
                options = Options(uncertainty=bool(draws.random() < 0.1))
                answer = service.submit(x, options).result(120)
                expected = members.expected(found, x)
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
