"""Examine Python, the required packages, and each extra with what it would add.

Each finding is a name, a state, what is told, and what would mend it.
"""

import json
import re
import sys
from collections.abc import Iterator

from trainwright.engine.doctor.machine import Machine

__all__ = ["GIVES", "examine_extras", "examine_packages", "imported"]

GIVES = {
    "fast": "forests, ensembles and memory plans by compiled code instead of Python",
    "torch": "training with trial.prepare, checkpoints, profiles, data-parallel trials",
    "ray": "trials on several nodes through Ray",
    "redis": "a ledger on a Redis server, for hundreds of workers",
    "optuna": "OptunaSearcher, Optuna's objectives unchanged, our searchers in Optuna's studies",
    "botorch": "BoTorchSearcher",
    "configspace": "spaces from ConfigSpace and to it",
    "parquet": "study.to_frame(), Parquet exports, tables of learning curves",
    "tensorboard": "export to TensorBoard",
    "mlflow": "export to MLflow",
    "wandb": "export to Weights & Biases",
    "hydra": "Hydra's sweeps as studies",
    "submitit": "jobs of submitit's executors that work on a study",
    "lightning": "the callback of Lightning's Trainer",
    "transformers": "the callback of Hugging Face's Trainer",
    "accelerate": "trials that are prepared by accelerate",
    "figure": "figures for papers: trainwright figure",
    "yaml": "cluster files in YAML",
    "onnx": "ensembles without factories, and members that are ONNX files",
    "ui": "the live page of a study",
    "serve": "the server of an ensemble and its client",
    "demo": "`make demo`: scikit-learn's images, a picture of the page",
}
_ASKED = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?\s*(?P<bounds>[^;]*)(?:;(?P<marker>.*))?")
_SECONDS = 120.0
_LOWEST_PYTHON = (3, 11)

_TORCH = """
import json, torch
torch.zeros(1).numpy()  # fails where the two were built for other versions
cuda = torch.version.cuda or getattr(torch.version, "hip", None)
gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count() if cuda else 0))
print(json.dumps({"cuda": cuda, "gpus": [{"name": each.name, "bytes": each.total_memory} for each in gpus]}))
"""


def imported(host: Machine) -> dict[str, dict[str, object]]:
    """Import the core packages, and torch if it is there, each in a process of its own; what came of each, by name."""
    names = [name for name, _, extra in _read_requirements(host) if not extra]
    names += ["torch"] * (host.version("torch") is not None)
    found: dict[str, dict[str, object]] = {}
    for name in names:
        # In another process, since a package may crash or hang the interpreter.
        code = _TORCH if name == "torch" else f"import {name}"
        status, output = host.run([sys.executable, "-c", code], _SECONDS)
        last = output.strip().rpartition("\n")[2]
        if status == 0:
            found[name] = json.loads(last) if last.startswith("{") else {}
        elif status is None:
            found[name] = {"error": "the import did not end in time"}
        else:
            found[name] = {"error": last if status > 0 and last else f"the import ended with status {status}"}
    return found


def examine_packages(host: Machine, probed: dict[str, dict[str, object]]) -> Iterator[tuple[str, ...]]:
    """Yield Python, the core packages and torch."""
    written = ".".join(map(str, host.python))
    if host.python < _LOWEST_PYTHON:
        yield "python", "broken", f"{written} is too old", "use Python 3.11 or newer"
    else:
        yield "python", "fine", f"{written} ({sys.executable})"
    for name, bounds, extra in _read_requirements(host):
        if not extra or (extra == name == "torch" and host.version("torch") is not None):
            yield name, *_examine_package(host, name, bounds, probed.get(name))


def _examine_package(host: Machine, name: str, bounds: str, probe: dict[str, object] | None) -> tuple[str, ...]:
    version = host.version(name)
    line = f'pip install "{name}{bounds}"'
    if version is None:
        return "broken", "is not installed", line
    if probe is not None and "error" in probe:
        python = ".".join(map(str, host.python[:2]))
        mend = f"install a build of {name} for Python {python} and the other packages' versions (constraints.txt)"
        return "broken", f"{version} cannot be imported: {probe['error']}", mend
    build = ""
    if name == "torch" and probe is not None:
        build = f", built for CUDA or ROCm {probe['cuda']}" if probe.get("cuda") else ", built for processors alone"
    return "fine", f"{version}{build}"


def examine_extras(host: Machine) -> Iterator[tuple[str, ...]]:
    """Yield each extra of which packages are asked for: what it gives, and whether all of them are there."""
    asked = list(_read_requirements(host))
    for extra, gives in GIVES.items():
        versions = {name: host.version(name) for name, _, of in asked if of == extra}
        # Part of an extra is as good as nothing, but the sentence names the part.
        missing = [name for name, version in versions.items() if version is None]
        line = f'pip install ".[{extra}]"'
        if missing:
            part = "" if len(missing) == len(versions) else f" ({', '.join(missing)} missing)"
            yield extra, "absent", f"{gives}{part}", line
        elif versions:
            yield extra, "fine", ", ".join(f"{name} {version}" for name, version in versions.items())


def _read_requirements(host: Machine) -> Iterator[tuple[str, str, str]]:
    """Yield (package, bounds, extra or "") for all that Trainwright asks for; "all" repeats the others."""
    for line in host.requirements():
        found = _ASKED.match(line)
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
        if found is not None and not (extra is not None and extra[1] == "all"):
            yield found["name"].lower(), found["bounds"].strip(" ()"), extra[1] if extra is not None else ""
