"""Check the required packages and each extra with what it would add.

Each finding is a name, a state, what is told, and what would mend it.
"""

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["GIVES", "check_extras", "check_packages", "import_torch", "version_of"]

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
    "onnx": "ensembles without factories, and members that are ONNX files",
    "ui": "the live page of a study",
    "serve": "the server of an ensemble and its client",
    "grpc": "the server of an ensemble over gRPC too",
    "demo": "`make demo`: scikit-learn's images, a picture of the page",
}
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?\s*(?P<bounds>[^;]*)")
_SECONDS = 120.0
_TORCH = """
import json, torch
torch.zeros(1).numpy()  # fails where the two were built for other versions
cuda = torch.version.cuda or getattr(torch.version, "hip", None)
gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count() if cuda else 0))
print(json.dumps({"cuda": cuda, "gpus": [{"name": each.name, "bytes": each.total_memory} for each in gpus]}))
"""


def version_of(package: str) -> str | None:
    """Return the version of an installed package, None if it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def import_torch() -> Mapping[str, Any]:
    """Import torch in a process of its own, as it may crash or hang; return its CUDA and GPUs, or the error."""
    if version_of("torch") is None:
        return {}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TORCH], capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"error": "the import did not end in time"}
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]
    last = done.stderr.strip().rpartition("\n")[2]
    return {"error": last or f"the import ended with status {done.returncode}"}


def check_packages(torch: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield Python, the core packages and torch; `torch` is what its import told."""
    yield "python", "fine", f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})"
    for name, bounds, extra in _read_requirements():
        version = version_of(name)
        if extra == name == "torch" and version is not None:
            built = f"CUDA or ROCm {torch['cuda']}" if torch.get("cuda") else "processors alone"
            if "error" in torch:
                mend = f"install a build of torch for this Python, {sys.version_info[0]}.{sys.version_info[1]}"
                yield name, "broken", f"{version} cannot be imported: {torch['error']}", mend
            else:
                yield name, "fine", f"{version}, built for {built}"
        elif not extra and version is None:
            yield name, "broken", "is not installed", f'pip install "{name}{bounds}"'
        elif not extra:
            yield name, "fine", str(version)


def check_extras() -> Iterator[tuple[str, ...]]:
    """Yield each extra: what it gives, and whether all of its packages are there."""
    asked = list(_read_requirements())
    for extra, gives in GIVES.items():
        versions = {name: version_of(name) for name, _, of in asked if of == extra}
        # Part of an extra is as good as nothing, but the sentence names the part.
        missing = [name for name, version in versions.items() if version is None]
        if missing:
            part = "" if len(missing) == len(versions) else f" ({', '.join(missing)} missing)"
            yield extra, "absent", f"{gives}{part}", f'pip install ".[{extra}]"'
        elif versions:
            yield extra, "fine", ", ".join(f"{name} {version}" for name, version in versions.items())


def _read_requirements() -> Iterator[tuple[str, str, str]]:
    """Yield (package, bounds, extra or "") for all that Trainwright asks for; "all" repeats the others."""
    try:
        lines = importlib.metadata.requires("trainwright") or ()
    except importlib.metadata.PackageNotFoundError:
        return
    for line in lines:
        found = _REQUIREMENT.match(line)
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
        name = "" if extra is None else extra[1]
        if found is not None and name != "all":
            yield found["name"].lower(), found["bounds"].strip(" ()"), name
