"""Captures the environment's fingerprint: versions, devices and code that can change a result; no user or host."""

import hashlib
import os
import platform
import re
import site
import sys
import sysconfig
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import trainwright
from trainwright.checkpoint.state.differences import Difference, Effect

__all__ = ["ENVIRONMENT", "capture_fingerprint", "compare_fingerprints"]

ENVIRONMENT = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_NUM_THREADS",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
"""The environment variables that are kept with a checkpoint; no others are read."""


def capture_fingerprint() -> dict[str, Any]:
    """Return the fingerprint of this process as plain values; None for what is not here.

    `code` maps the loaded modules that were not installed to digests of their files: your script, and what it imports
    from beside it.
    """
    import torch

    cuda = torch.cuda.is_available()
    return {
        "trainwright": version("trainwright"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
        "driver": _first_line(Path("/proc/driver/nvidia/version"), r"Kernel Module\D*([\d.]+)") if cuda else None,
        "devices": [torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count())],
        "cpu": _first_line(Path("/proc/cpuinfo"), r"model name\s*:\s*(.+)")
        or platform.processor()
        or platform.machine(),
        "cpu_kernels": torch.backends.cpu.get_cpu_capability(),
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        "code": _digest_code(),
    }


def compare_fingerprints(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Return what differs between two fingerprints; code that only one of them has loaded is no difference."""
    before, after = _flatten(saved), _flatten(now)
    return [
        Difference(
            item=name,
            saved=before.get(name),
            now=after.get(name),
            effect=Effect.CODE if name == "trainwright" or name.startswith("code of ") else Effect.ROUNDING,
        )
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name) and (name.startswith("$") or (name in before and name in after))
    ]


def _flatten(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fingerprint with a name for each variable of the environment and each module."""
    plain = {name: value for name, value in fingerprint.items() if name not in {"code", "environment"}}
    plain |= {f"${name}": value for name, value in fingerprint.get("environment", {}).items()}
    return plain | {f"code of {name}": value for name, value in fingerprint.get("code", {}).items()}


def _digest_code() -> dict[str, str]:
    paths = sysconfig.get_paths()
    installed = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed += [site.getusersitepackages(), str(Path(trainwright.__file__).parent)]
    # Those of a base environment, or of one that stands in PYTHONPATH.
    installed += [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    # Installed packages are known by their versions; only the user's own code is digested.
    roots = tuple(f"{root}{os.sep}" for path in installed for root in {path, os.path.realpath(path)})
    digests = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and not file.startswith(roots):
            # One script, run as such or started by multiprocessing.
            main = name in {"__main__", "__mp_main__"}
            digests[Path(file).stem if main else name] = _digest(Path(file))
    return {name: digest for name, digest in digests.items() if digest is not None}


def _digest(path: Path) -> str | None:
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
    except OSError:
        # In an archive, or gone.
        return None


def _first_line(path: Path, pattern: str) -> str | None:
    try:
        found = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found.group(1).strip() if found else None
