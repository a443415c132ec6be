"""Captures and restores torch's process-wide flags that change how numbers round, such as deterministic algorithms."""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
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
)
# TF32, kind by kind: torch's older switches for it are views of these, and refuse to be read when they are mixed.
_PRECISIONS = (
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
_OLD_PRECISIONS = ("cuda.matmul.allow_tf32", "cudnn.allow_tf32")
"""All that torch has before 2.9."""
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")

Flag = tuple[Callable[[], Any], Callable[[Any], object] | None]
"""What reads a flag as a plain value, and what sets it; None: nothing does in a process that runs."""


def capture_flags() -> dict[str, Any]:
    """Return all flags by name, as plain values.

    The hash seed is None where Python draws one, and the workspace of cuBLAS where there is no CUDA.
    """
    return {name: read() for name, (read, _) in _list_flags().items()}


def _list_flags() -> dict[str, Flag]:
    import torch

    deterministic: Any = torch.utils.deterministic
    flags: dict[str, Flag] = {}
    precisions = _PRECISIONS if hasattr(torch.backends.cudnn, "conv") else _OLD_PRECISIONS
    for name in (*_BACKENDS, *precisions):
        owner, _, last = name.rpartition(".")
        home = attrgetter(owner)(torch.backends) if owner else torch.backends
        # An older torch lacks some: nothing is to be kept of them.
        if hasattr(home, last):
            flags[name] = partial(getattr, home, last), partial(setattr, home, last)
    for kind in _ATTENTION:
        switches: Any = torch.backends.cuda
        flags[f"attention.{kind}"] = getattr(switches, f"{kind}_sdp_enabled"), getattr(switches, f"enable_{kind}_sdp")
    for device in ("cpu", "cuda"):
        flags[f"autocast.{device}"] = partial(_read_autocast, device), partial(_set_autocast, device)
    return flags | {
        "deterministic_algorithms": (
            lambda: [
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ],
            lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
        ),
        "fill_uninitialized_memory": (
            lambda: deterministic.fill_uninitialized_memory,
            lambda value: setattr(deterministic, "fill_uninitialized_memory", value),
        ),
        "default_dtype": (
            lambda: _dtype_name(torch.get_default_dtype()),
            lambda value: torch.set_default_dtype(getattr(torch, value)),
        ),
        "threads": (torch.get_num_threads, torch.set_num_threads),
        "hash_seed": (lambda: None if sys.flags.ignore_environment else os.environ.get("PYTHONHASHSEED"), None),
        "cublas_workspace": (
            lambda: os.environ.get("CUBLAS_WORKSPACE_CONFIG") if torch.cuda.is_available() else None,
            None,
        ),
    }


def compare_flags(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Return the flags whose values differ; one that either side does not know is none."""
    return [
        Difference(
            item=f"flags.{name}",
            saved=saved[name],
            now=now[name],
            effect=Effect.DRAWS if name == "hash_seed" else Effect.ROUNDING,
        )
        for name in saved
        if name in now and saved[name] != now[name]
    ]


def restore_flags(saved: Mapping[str, Any]) -> list[Difference]:
    """Set every flag that is not as saved; return those that cannot be set in a process that runs.

    These are the hash seed and, once CUDA is in use, the workspace of cuBLAS: start Python with PYTHONHASHSEED and
    CUBLAS_WORKSPACE_CONFIG as saved.
    """
    import torch

    flags = _list_flags()
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
            elif (set_flag := flags[name][1]) is not None:
                set_flag(saved[name])
        found = compare_flags(saved, capture_flags())
    return found


def _read_autocast(device: str) -> list[Any]:
    import torch

    return [torch.is_autocast_enabled(device), _dtype_name(torch.get_autocast_dtype(device))]


def _set_autocast(device: str, value: list[Any]) -> None:
    import torch

    torch.set_autocast_enabled(device, value[0])
    torch.set_autocast_dtype(device, getattr(torch, value[1]))


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
