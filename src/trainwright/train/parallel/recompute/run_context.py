"""Saves and restores a stage's context besides its input for reruns: RNG state, autocast, buffers, weights."""

import contextlib
import ctypes
import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed import fsdp

from trainwright.errors import UnsupportedModel

__all__ = [
    "Autocast",
    "Buffers",
    "RunContext",
    "buffer_places",
    "copied_buffers",
    "drawing_again",
    "drawn_from",
    "has_hooks",
    "keep_freed_pages",
    "read_buffer",
    "read_generators",
    "set_generators",
    "swapped_values",
    "weight_places",
]

# An older torch has it elsewhere, and no plan: but plain training reads this module too.
_FSDP_MODULE: Any = getattr(fsdp, "FSDPModule", ())

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt."""
_LARGEST_IN_HEAP = 32 << 20
"""The most bytes of a block that glibc lets be kept."""

Place = tuple[nn.Module, str]
"""A module and the name of a tensor in it."""


@dataclass(frozen=True, slots=True)
class Autocast:
    """How autocast stood when the forward pass began, by kind of device."""

    states: tuple[tuple[str, bool, torch.dtype], ...]

    @classmethod
    def now(cls) -> "Autocast":
        """Return how it stands."""
        kinds = ["cpu"]
        if torch.accelerator.is_available():
            kinds.append(torch.accelerator.current_accelerator().type)  # type: ignore[union-attr]  # it is available
        return cls(tuple((k, torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds))

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Enter it again. Casts of weights are not cached: one made without gradients would serve those with them."""
        if not any(enabled or torch.is_autocast_enabled(kind) for kind, enabled, _ in self.states):
            yield
            return
        with contextlib.ExitStack() as stack:
            for kind, enabled, dtype in self.states:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False))
            yield


def read_generators(names: Iterable[str] = ("cpu", "python", "numpy")) -> dict[str, Any]:
    """Return where generators stand: torch's "cpu", those of CUDA devices such as "cuda:0", "python" and "numpy"."""
    states: dict[str, Any] = {}
    for name in names:
        if name == "python":
            states[name] = random.getstate()
        elif name == "numpy":
            kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  that of a user's forward
            states[name] = kind, np.asarray(keys).tobytes(), *rest
        else:
            states[name] = torch.get_rng_state() if name == "cpu" else torch.cuda.get_rng_state(name)
    return states


def set_generators(states: Mapping[str, Any]) -> None:
    """Let generators go on from where they stood."""
    for name, state in states.items():
        if name == "python":
            random.setstate(state)
        elif name == "numpy":
            kind, keys, *rest = state
            np.random.set_state((kind, np.frombuffer(keys, np.uint32), *rest))  # noqa: NPY002  as above
        elif name == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, name)


@contextlib.contextmanager
def drawing_again(states: Mapping[str, Any]) -> Iterator[None]:
    """Draw the numbers behind these states again, and leave the generators where they were."""
    # A rerun is no draw of its own.
    now = read_generators(states)
    set_generators(states)
    try:
        yield
    finally:
        set_generators(now)


def drawn_from(states: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of those generators that have moved since."""
    now = read_generators(states)
    return {
        name: state
        for name, state in states.items()
        if not (torch.equal(state, now[name]) if isinstance(state, torch.Tensor) else state == now[name])
    }


def buffer_places(stages: Iterable[nn.Module]) -> list[Place]:
    """Return where the buffers of these modules are, and of those inside them."""
    return [
        (module, name)
        for stage in stages
        for module in stage.modules()
        for name, buffer in module._buffers.items()  # noqa: SLF001  named_buffers would give paths
        if buffer is not None
    ]


def copied_buffers(places: Iterable[Place]) -> list[tuple[Place, torch.Tensor]]:
    """Return copies of what is in these places, for `swapped_values`."""
    return [(place, read_buffer(place).clone()) for place in places]


class Buffers:
    """The buffers that stages' forwards write; which they are is learned when these run first."""

    def __init__(self, stages: Iterable[nn.Module]) -> None:
        self._all = buffer_places(stages)
        self._written: list[Place] | None = None

    @contextlib.contextmanager
    def watched(self, seen: "RunContext") -> Iterator[None]:
        """Keep in `seen` what the written ones hold before the first run of a step."""
        places = self._all if self._written is None else self._written
        # The clones show writes that no version counts, and are what a rerun begins with.
        found = [(place, read_buffer(place)) for place in places]
        before = [(place, buffer, buffer._version, buffer.clone()) for place, buffer in found]  # noqa: SLF001  counts writes
        yield
        # Which buffers are written is learned in the first step; later steps clone those alone.
        if self._written is None:
            before = [entry for entry in before if _changed(*entry)]
            self._written = [place for place, *_ in before]
        seen.buffers = [(place, clone) for place, _, _, clone in before]

    @staticmethod
    @contextlib.contextmanager
    def scratch(seen: "RunContext") -> Iterator[None]:
        """Let a rerun begin with what the first run began with, and write to copies.

        Copying back instead would change buffers that a graph has saved, and autograd would refuse its backward.
        """
        with swapped_values([(place, clone.clone()) for place, clone in seen.buffers]):
            yield


@contextlib.contextmanager
def swapped_values(tensors: list[tuple[Place, torch.Tensor]]) -> Iterator[None]:
    """Put tensors in the place of buffers, and those back at the end."""
    own = [(place, read_buffer(place)) for place, _ in tensors]
    _put(tensors)
    try:
        yield
    finally:
        _put(own)


def _put(tensors: list[tuple[Place, torch.Tensor]]) -> None:
    for (module, name), tensor in tensors:
        module._buffers[name] = tensor  # noqa: SLF001  setattr would ask every parameter first


@dataclass(slots=True)
class RunContext:
    """What a unit of stages saw at its first run of a step."""

    random: dict[str, Any] = field(default_factory=dict)
    """Where generators stood that it has drawn from."""
    buffers: list[tuple[Place, torch.Tensor]] = field(default_factory=list)
    weights: list[tuple[dict[str, Any], str, torch.Tensor, int]] = field(default_factory=list)

    def keep_weights(self, places: Iterable[tuple[dict[str, Any], str]]) -> None:
        """Keep which parameters are in these places, and how often each has been written."""
        self.weights = [
            (held, name, held[name], held[name]._version)  # noqa: SLF001  counts the writes to a tensor
            for held, name in places
            # A parametrisation may have replaced it.
            if held.get(name) is not None
        ]

    @contextlib.contextmanager
    def same_weights(self) -> Iterator[None]:
        """Put parameters back that stood there for that call alone; raise UnsupportedModel if one has been written."""
        other = []
        for held, name, tensor, version in self.weights:
            # With other weights a rerun would give the gradients of another function.
            if tensor._version != version:  # noqa: SLF001  counts the writes to a tensor
                raise UnsupportedModel(
                    f"backward: parameter {name!r} was changed in place since the forward; allowed: parameters that "
                    "stay as they are until backward is done; let the optimizer step after it"
                )
            if held.get(name) is not tensor:
                other.append((held, name, held[name]))
                held[name] = tensor
        try:
            yield
        finally:
            for held, name, tensor in other:
                held[name] = tensor


def read_buffer(place: Place) -> Any:
    """Return what is in the place of a buffer."""
    module, name = place
    return module._buffers[name]  # noqa: SLF001  a property of the same name may stand before it


def _changed(place: Place, tensor: torch.Tensor, version: int, before: torch.Tensor) -> bool:
    # Values too: batch normalisation writes its running statistics without counting it.
    unwritten = read_buffer(place) is tensor and tensor._version == version  # noqa: SLF001  counts the writes to a tensor
    return not (unwritten and torch.equal(tensor, before))


def weight_places(stage: nn.Module) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield where a stage's parameters are."""
    for module in stage.modules():
        held = module._parameters  # noqa: SLF001  where a call of torch.func puts its own
        yield from ((held, name) for name, each in held.items() if each is not None)


@cache
def keep_freed_pages() -> None:
    """Let this process keep the pages that it frees, as the allocator of a CUDA device does.

    Otherwise glibc gives the top of its heap back to the system whenever enough of it is free, and a step that frees
    and makes again has all of those pages zeroed again: up to a quarter of its time. Whoever has set malloc by the
    environment is left alone.
    """
    if sys.platform == "linux" and not {"MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys():
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:  # it is glibc
            mallopt(_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
            mallopt(_TRIM_THRESHOLD, -1)


def has_hooks(module: nn.Module) -> bool:
    """Return whether a call of a module does more than its forward."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return isinstance(module, _FSDP_MODULE) or any(getattr(module, kind) for kind in kinds)
