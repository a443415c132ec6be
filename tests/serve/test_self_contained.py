"""What members left, how alike they are, and who asks, crossed: in processes that cannot import the factory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
sys.path.insert(0, str(Path(__file__).parent))

import served_networks as networks

from trainwright.ensemble.export.onnx_file import export_network

LEFT = {"factory": (False, True), "program": (True, False), "both": (True, True)}  # (a program, a factory)
NETWORKS = {"one": [{}], "alike": [{}, {}], "unlike": [{"hidden": 4}, {"hidden": 8}]}


EXPORTED = {}


def program(network):
    """Return the program of a network; equal ones are exported once."""
    key = repr(network), *(weight.numpy().tobytes() for weight in network.state_dict().values())
    if key not in EXPORTED:
        EXPORTED[key] = export_network(network, networks.inputs(7), whose="it")
    return EXPORTED[key]


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Return a folder with an export of each kind, a batch, and what each export is to answer."""
    place = tmp_path_factory.mktemp("exports")
    x = networks.inputs(7)
    np.save(place / "x.npy", x)
    for left, (exported, by_name) in LEFT.items():
        for structure, params in NETWORKS.items():
            found = networks.ensemble(
                place / "left" / left / structure, params, program=program if exported else None, by_name=by_name
            )
            name = f"{left}-{structure}"
            np.save(place / f"{name}.npy", found.predict(x))
            found.save(place / name)
    return place


def asked(code, place, *arguments):
    """Run code in a process that has neither the tests' folders on its path nor the one where they lie."""
    paths = [each for each in sys.path if "/tests" not in each and each]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


LOADS = """
import itertools, json, sys
import numpy as np, trainwright as tw
from trainwright.errors import EnsembleError, ServeError
from trainwright.serve.runtime.member_runners import describe_member, runner_of

found = {}
x = np.load("x.npy")
for left, structure in itertools.product(("factory", "program", "both"), ("one", "alike", "unlike")):
    name = f"{left}-{structure}"
    expected = np.load(name + ".npy")
    ensemble = tw.Ensemble.load(name)
    for kind in ("predict", "loop"):
        try:
            if kind == "predict":
                answer = ensemble.predict(x)
            else:
                told = {"members": [describe_member(member) for member in ensemble.members],
                        "device": "cpu", "threads": 1}
                each = dict(runner_of(told)(x, range(len(ensemble.members))))
                answer = sum(each.values()) / len(each)
            found[f"{name} {kind}"] = "right" if np.abs(answer - expected).max() < 1e-6 else "wrong"
        except (EnsembleError, ServeError) as error:
            found[f"{name} {kind}"] = str(error)
assert "served_networks" not in sys.modules
print(json.dumps(found))
"""


def test_loaded_and_run_as_workers_do(exports):
    found = asked(LOADS, exports)
    assert len(found) == 3 * 3 * 2
    for name, said in found.items():
        if name.partition("-")[0] == "factory":
            assert "factory 'served_networks:classes' cannot be imported" in said, name
        else:
            assert said == "right", name


SERVES = """
import json, sys
import numpy as np, trainwright as tw
from trainwright.errors import TrainwrightError
from trainwright.serve import Client, DeploymentPlan, Server, allocate

name, ways = sys.argv[1], sys.argv[2:]
found = {}
x, expected = np.load("x.npy"), np.load(name + ".npy")
ensemble = tw.Ensemble.load(name)
for way in ways:
    try:
        plan = DeploymentPlan.simple(ensemble, "cpu") if way == "simple" else allocate(ensemble, "cpu", batches=(8,))
        with tw.Deployment(ensemble, plan) as service:
            answer = service.predict(x)
            with Server(service, port=0) as server, Client(server.url) as client:
                over_http = client.predict(x)
        found[way] = "right" if max(np.abs(one - expected).max() for one in (answer, over_http)) < 1e-5 else "wrong"
    except TrainwrightError as error:
        found[way] = str(error)
assert "served_networks" not in sys.modules
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("structure", NETWORKS)
@pytest.mark.parametrize("left", LEFT)
def test_served(exports, left, structure):
    """Asked in process and over HTTP; some are placed by what their members take, which costs half a minute."""
    pytest.importorskip("httptools")
    ways = ("simple", "allocate") if (left, structure) in {("program", "alike"), ("both", "unlike")} else ("simple",)
    found = asked(SERVES, exports, f"{left}-{structure}", *ways)
    for said in found.values():
        if left == "factory":
            assert "factory 'served_networks:classes' cannot be imported" in said
        else:
            assert said == "right"
