"""Examine Python, the required packages, and each extra with what it would add."""

import json
import re
import sys
from collections.abc import Iterator

from trainwright.engine.doctor.finding import Area, Finding, Grade
from trainwright.engine.doctor.machine import Machine

__all__ = ["GIVES", "examine_packages", "imported"]

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
    names = [name for name, _, extra in _read_requirements(host) if not extra] + ["torch"] * (
        host.version("torch") is not None
    )
    done = host.run([sys.executable, "-c", _PROBE, *names], _SECONDS)
    found: dict[str, dict[str, object]] = {}
    begun = ""
    for line in done.out.splitlines():
        try:
            told = json.loads(line)
        except ValueError:  # something that a package prints when it is imported
            continue
        begun = told.get("begun", begun)
        found[begun] = told
    if done.status != 0 and begun and "begun" in found.get(begun, {}):
        how = f"ended the interpreter (status {done.status})" if done.status is not None else "did not end in time"
        found[begun] = {"failed": begun, "error": f"the import {how}"}
    return found


def examine_packages(host: Machine, probed: dict[str, dict[str, object]]) -> Iterator[Finding]:
    """Yield Python, the core packages and torch, then each extra."""
    written = ".".join(map(str, host.python))
    if host.python < _LOWEST_PYTHON:
        yield _make_finding("python", Grade.BROKEN, f"{written} is too old", "use Python 3.11 or newer")
    else:
        yield _make_finding("python", Grade.FINE, f"{written} ({sys.executable})")
    asked = list(_read_requirements(host))
    if not asked:
        says = "its package metadata is not there, so that versions and extras cannot be checked"
        yield _make_finding("trainwright", Grade.POOR, says, "pip install --editable . (in the checkout)")
        return
    for name, bounds, extra in asked:
        if not extra or (extra == "torch" and name == "torch" and host.version("torch") is not None):
            yield _examine_package(host, name, bounds, probed.get(name))
    known = host.extras()
    if unknown := [extra for extra in GIVES if extra not in known]:
        says = f"was installed from an older checkout, which has no extra {', '.join(unknown)}"
        yield _make_finding("trainwright", Grade.POOR, says, "pip install --editable . (in the checkout)")
    for extra in GIVES:
        if packages := [(name, bounds) for name, bounds, of in asked if of == extra]:
            yield _examine_extra(host, extra, packages)


def _make_finding(name: str, state: Grade, says: str, mend: str = "") -> Finding:
    return Finding(area=Area.INSTALLED, name=name, state=state, says=says, mend=mend)


def _examine_package(host: Machine, name: str, bounds: str, told: dict[str, object] | None) -> Finding:
    version = host.version(name)
    line = f'pip install "{name}{bounds}"'
    if version is None:
        return _make_finding(name, Grade.BROKEN, "is not installed", line)
    if not fits(version, bounds):
        return _make_finding(name, Grade.BROKEN, f"{version} does not meet {bounds}", line)
    if told is not None and "failed" in told:
        python = ".".join(map(str, host.python[:2]))
        mend = f"install a build of {name} for Python {python} and the other packages' versions (constraints.txt)"
        return _make_finding(name, Grade.BROKEN, f"{version} cannot be imported: {told['error']}", mend)
    build = ""
    if name == "torch" and told is not None:
        build = f", built for CUDA or ROCm {told['cuda']}" if told.get("cuda") else ", built for processors alone"
    return _make_finding(name, Grade.FINE, f"{version}{build}")


def _examine_extra(host: Machine, extra: str, asked: list[tuple[str, str]]) -> Finding:
    versions = {name: host.version(name) for name, _ in asked}
    missing = [name for name, version in versions.items() if version is None]
    old = [
        f"{name} {versions[name]} (needs {bounds})"
        for name, bounds in asked
        if not _meets_bounds(versions[name], bounds)
    ]
    line = f'pip install ".[{extra}]"'
    if missing:
        without = "" if len(missing) == len(asked) else f" ({', '.join(missing)} missing)"
        return Finding(area=Area.EXTRAS, name=extra, state=Grade.ABSENT, says=f"{GIVES[extra]}{without}", mend=line)
    if old:
        return Finding(area=Area.EXTRAS, name=extra, state=Grade.POOR, says=f"too old: {', '.join(old)}", mend=line)
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Finding(area=Area.EXTRAS, name=extra, state=Grade.FINE, says=told)


def _read_requirements(host: Machine) -> Iterator[tuple[str, str, str]]:
    """Yield (package, bounds, extra or "") for all that Trainwright asks for; "all" repeats the others."""
    for line in host.requirements():
        found = _ASKED.match(line)
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
        if found is not None and not (extra is not None and extra[1] == "all"):
            yield found["name"].lower(), found["bounds"].strip(" ()"), extra[1] if extra is not None else ""


def _meets_bounds(version: str | None, bounds: str) -> bool:
    return version is None or fits(version, bounds)


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
