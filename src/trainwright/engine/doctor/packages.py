"""Examine Python, the required packages, and each extra with what it would add.

Each finding is a name, a state, what is told, and what would mend it.
"""

import json
import re
import sys
from collections.abc import Iterator

from trainwright.engine.doctor.machine import Machine

__all__ = ["GIVES", "examine_extras", "examine_packages", "fits", "imported"]

GIVES = {
    "torch": "training with trial.prepare, checkpoints, profiles, data-parallel trials",
    "ray": "trials on several nodes through Ray",
    "redis": "a ledger on a Redis server, for hundreds of workers",
    "optuna": "OptunaSearcher, Optuna's objectives unchanged, our searchers in Optuna's studies",
    "configspace": "spaces from ConfigSpace and to it",
    "parquet": "study.to_frame(), Parquet exports, tables of learning curves",
    "tensorboard": "export to TensorBoard",
    "mlflow": "export to MLflow",
    "yaml": "cluster files in YAML",
    "ui": "the live page of a study",
    "serve": "the server of an ensemble and its client",
    "demo": "`make demo`: scikit-learn's images, a picture of the page",
}
_ASKED = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?\s*(?P<bounds>[^;]*)(?:;(?P<marker>.*))?")
_SECONDS = 120.0
_LOWEST_PYTHON = (3, 11)

# Runs in a process of its own: a package that crashes or hangs the interpreter is told by name as well.
_PROBE = """
import importlib, json, sys, time
for name in sys.argv[1:]:
    begun = time.perf_counter()
    print(json.dumps({"begun": name}), flush=True)
    try:
        module = importlib.import_module(name)
        found = {"imported": name, "seconds": time.perf_counter() - begun}
        if name == "torch":
            found["cuda"] = module.version.cuda or getattr(module.version, "hip", None)
            count = module.cuda.device_count() if found["cuda"] else 0
            found["gpus"] = [
                {"name": each.name, "bytes": each.total_memory}
                for each in map(module.cuda.get_device_properties, range(count))
            ]
            found["numpy"] = int(module.zeros(1).numpy().shape[0])  # fails where the two were built for other versions
    except Exception as error:
        found = {"failed": name, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
    print(json.dumps(found), flush=True)
"""


def imported(host: Machine) -> dict[str, dict[str, object]]:
    """Import the core packages, and torch if it is there, in a process of its own; what came of each, by name."""
    names = [name for name, _, extra in _read_requirements(host) if not extra]
    names += ["torch"] * (host.version("torch") is not None)
    status, output = host.run([sys.executable, "-c", _PROBE, *names], _SECONDS)
    found: dict[str, dict[str, object]] = {}
    begun = ""
    for line in output.splitlines():
        try:
            told = json.loads(line)
        except ValueError:  # something that a package prints when it is imported
            continue
        begun = told.get("begun", begun)
        found[begun] = told
    if status != 0 and begun and "begun" in found.get(begun, {}):
        how = f"ended the interpreter (status {status})" if status is not None else "did not end in time"
        found[begun] = {"failed": begun, "error": f"the import {how}"}
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


def _examine_package(host: Machine, name: str, bounds: str, told: dict[str, object] | None) -> tuple[str, ...]:
    version = host.version(name)
    line = f'pip install "{name}{bounds}"'
    if version is None:
        return "broken", "is not installed", line
    if not fits(version, bounds):
        return "broken", f"{version} does not meet {bounds}", line
    if told is not None and "failed" in told:
        python = ".".join(map(str, host.python[:2]))
        mend = f"install a build of {name} for Python {python} and the other packages' versions (constraints.txt)"
        return "broken", f"{version} cannot be imported: {told['error']}", mend
    build = ""
    if name == "torch" and told is not None:
        build = f", built for CUDA or ROCm {told['cuda']}" if told.get("cuda") else ", built for processors alone"
    return "fine", f"{version}{build}"


def examine_extras(host: Machine) -> Iterator[tuple[str, ...]]:
    """Yield each extra of which packages are asked for: what it gives, and whether all of them are there."""
    asked = list(_read_requirements(host))
    for extra, gives in GIVES.items():
        versions = {name: (host.version(name), bounds) for name, bounds, of in asked if of == extra}
        missing = [name for name, (version, _) in versions.items() if version is None]
        old = [
            f"{name} {version} (needs {bounds})"
            for name, (version, bounds) in versions.items()
            if version is not None and not fits(version, bounds)
        ]
        line = f'pip install ".[{extra}]"'
        if missing:
            part = "" if len(missing) == len(versions) else f" ({', '.join(missing)} missing)"
            yield extra, "absent", f"{gives}{part}", line
        elif old:
            yield extra, "poor", f"too old: {', '.join(old)}", line
        elif versions:
            yield extra, "fine", ", ".join(f"{name} {version}" for name, (version, _) in versions.items())


def _read_requirements(host: Machine) -> Iterator[tuple[str, str, str]]:
    """Yield (package, bounds, extra or "") for all that Trainwright asks for; "all" repeats the others."""
    for line in host.requirements():
        found = _ASKED.match(line)
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
        if found is not None and not (extra is not None and extra[1] == "all"):
            yield found["name"].lower(), found["bounds"].strip(" ()"), extra[1] if extra is not None else ""


def fits(version: str, bounds: str) -> bool:
    """Return whether a version meets bounds such as ">=2.55,<3"; operators other than these are taken as met."""
    mine = _parse_numbers(version)
    for bound in filter(None, bounds.split(",")):
        found = re.match(r"\s*(>=|<=|<|>|==)\s*([\d.]+)", bound)
        if found is None:
            continue
        other = _parse_numbers(found[2])
        length = max(len(mine), len(other))
        left, right = (numbers + (0,) * (length - len(numbers)) for numbers in (mine, other))
        met = {">=": left >= right, "<=": left <= right, "<": left < right, ">": left > right, "==": left == right}
        if not met[found[1]]:
            return False
    return True


def _parse_numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found is not None else ()
