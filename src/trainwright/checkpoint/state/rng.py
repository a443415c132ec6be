"""Capture and restore the RNG state: the global random number generators of Python, NumPy, torch and CUDA devices."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from trainwright.checkpoint.state.differences import Difference, Effect

__all__ = ["capture_rng_state", "restore_rng_state"]


def capture_rng_state() -> dict[str, Any]:
    """Return the states of all global generators as tensors and plain values.

    CUDA's are among them once CUDA is in use: before, they hold nothing but the seed, and asking would start it.
    """
    import torch

    version, internal, gauss = random.getstate()
    states: dict[str, Any] = {
        "python": {"version": version, "state": torch.from_numpy(np.array(internal, dtype=np.int64)), "gauss": gauss},
        "numpy": _as_tensors(np.random.get_state(legacy=False)),  # noqa: NPY002 -- the user's libraries draw from it
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_rng_state(states: Mapping[str, Any]) -> list[Difference]:
    """Put the generators back where `capture_rng_state` found them; return what has no place here."""
    import torch

    python = states["python"]
    random.setstate((python["version"], tuple(python["state"].tolist()), python["gauss"]))
    differences = []
    current = np.random.get_state(legacy=False)["bit_generator"]  # noqa: NPY002 -- likewise
    # The state of one kind of generator means nothing to another.
    if states["numpy"]["bit_generator"] == current:
        np.random.set_state(_as_arrays(states["numpy"]))  # noqa: NPY002 -- likewise
    else:
        kinds = {"saved": states["numpy"]["bit_generator"], "now": current}
        differences.append(Difference(item="random.numpy", **kinds, effect=Effect.DRAWS))
    torch.set_rng_state(states["torch"].cpu())
    saved = states.get("cuda", [])
    devices = torch.cuda.device_count() if saved else 0
    # With fewer devices than before, the first ones get their own states and the rest is reported.
    for number, state in enumerate(saved[:devices]):
        torch.cuda.set_rng_state(state.cpu(), number)
    if devices < len(saved):
        differences.append(Difference(item="random.cuda", saved=len(saved), now=devices, effect=Effect.DRAWS))
    return differences


def _as_tensors(value: Any) -> Any:
    """Return NumPy's state with tensors of int64 for arrays: no format needs to know unsigned words."""
    import torch

    if isinstance(value, Mapping):
        return {key: _as_tensors(item) for key, item in value.items()}
    return torch.from_numpy(value.astype(np.int64)) if isinstance(value, np.ndarray) else value


def _as_arrays(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _as_arrays(item) for key, item in value.items()}
    return value.cpu().numpy().astype(np.uint64) if hasattr(value, "numpy") else value
