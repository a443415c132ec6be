"""Torch's process-wide flags that change how numbers round: captured with a checkpoint, set on restore."""

import os
import sys
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from trainwright.checkpoint.state.differences import Difference, Effect

__all__ = ["capture_flags", "compare_flags", "restore_flags"]

_BACKENDS = (
    "cudnn.enabled",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "mkldnn.enabled",
    "mkldnn.deterministic",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    # TF32, kind by kind: torch's older switches for it are views of these, and refuse to be read when they are mixed
    "fp32_precision",
    "cuda.matmul.fp32_precision",
    "cudnn.fp32_precision",
    "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision",
    "mkldnn.fp32_precision",
    "mkldnn.conv.fp32_precision",
    "mkldnn.matmul.fp32_precision",
    "mkldnn.rnn.fp32_precision",
)
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
_AUTOCAST = ("cpu", "cuda")
_UNSETTABLE = ("hash_seed", "cublas_workspace")


def capture_flags() -> dict[str, Any]:
    """Return all flags by name, as plain values.

    The hash seed is None where Python draws one, and the workspace of cuBLAS where there is no CUDA.
    """
    import torch

    flags: dict[str, Any] = {name: attrgetter(name)(torch.backends) for name in _BACKENDS}
    flags |= {f"attention.{kind}": getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in _ATTENTION}
    flags |= {
        f"autocast.{device}": [torch.is_autocast_enabled(device), _dtype_name(torch.get_autocast_dtype(device))]
        for device in _AUTOCAST
    }
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return flags | {
        "deterministic_algorithms": [torch.are_deterministic_algorithms_enabled(), warn_only],
        "fill_uninitialized_memory": getattr(torch.utils.deterministic, "fill_uninitialized_memory"),  # noqa: B009 -- untyped
        "default_dtype": _dtype_name(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "hash_seed": None if sys.flags.ignore_environment else os.environ.get("PYTHONHASHSEED"),
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG") if torch.cuda.is_available() else None,
    }


def compare_flags(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Return the flags whose values differ; one that either side does not know is none."""
    return [
        Difference(item=f"flags.{name}", saved=saved[name], now=now[name], effect=_effect_of(name))
        for name in saved
        if name in now and saved[name] != now[name]
    ]


def restore_flags(saved: Mapping[str, Any]) -> list[Difference]:
    """Set every flag that is not as saved; return those that cannot be set in a process that runs.

    These are the hash seed and, once CUDA is in use, the workspace of cuBLAS: start Python with PYTHONHASHSEED and
    CUBLAS_WORKSPACE_CONFIG as saved.
    """
    import torch

    found = compare_flags(saved, capture_flags())
    # A switch of TF32 moves those below it: the second pass sets what the first moved.
    for _ in range(2):
        if not found:
            break
        # Set only what differs: reading or setting a flag may have side effects.
        for difference in found:
            name = difference.item.removeprefix("flags.")
            if name == "cublas_workspace" and not torch.cuda.is_initialized() and saved[name] is not None:
                # Read by cuBLAS when CUDA starts.
                os.environ["CUBLAS_WORKSPACE_CONFIG"] = saved[name]
            elif name not in _UNSETTABLE:
                _find_setter(name)(saved[name])
        found = compare_flags(saved, capture_flags())
    return found


def _find_setter(name: str) -> Callable[[Any], None]:
    import torch

    kind, _, last = name.rpartition(".")
    if kind == "attention":
        return getattr(torch.backends.cuda, f"enable_{last}_sdp")  # type: ignore[no-any-return]  # untyped there
    if kind == "autocast":
        return lambda value: _set_autocast(last, *value)
    if name in _BACKENDS:
        owner = attrgetter(kind)(torch.backends) if kind else torch.backends
        return lambda value: setattr(owner, last, value)
    others: dict[str, Callable[[Any], None]] = {
        "deterministic_algorithms": lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
        "fill_uninitialized_memory": lambda value: setattr(
            torch.utils.deterministic, "fill_uninitialized_memory", value
        ),
        "default_dtype": lambda value: torch.set_default_dtype(getattr(torch, value)),
        "threads": torch.set_num_threads,
    }
    return others[name]


def _set_autocast(device: str, enabled: bool, dtype: str) -> None:
    import torch

    torch.set_autocast_enabled(device, enabled)
    torch.set_autocast_dtype(device, getattr(torch, dtype))


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _effect_of(name: str) -> Effect:
    return Effect.DRAWS if name == "hash_seed" else Effect.ROUNDING
