"""Derives seeds: counter-based randomness, where every draw is a function of (seed, purpose, number, draw).

Philox-4x64 (Salmon et al., SC 2011) keyed by BLAKE2b of (seed, purpose); the counter starts at (number, draw).
"""

import hashlib
import importlib.util
import random
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np

__all__ = ["rng", "seed_all"]


@lru_cache(maxsize=256)
def _key(seed: int, purpose: str) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def rng(seed: int, purpose: str, number: int, draw: int = 0) -> np.random.Generator:
    """Return the generator of one draw.

    `purpose` names the stream ("initial", "candidates", "forest", "trial", ...), `number` is usually the
    trial's number and `draw` tells repeated draws for one number apart. Equal arguments give equal streams
    on every platform; different ones give independent streams.
    """
    key = np.array(_key(seed, purpose), dtype=np.uint64)
    counter = np.array([0, 0, draw, number], dtype=np.uint64)  # the low words advance as numbers are drawn
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators with a 63-bit seed; torch when it is loaded."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 -- the user's libraries draw from the global state
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _SeedTorch)]
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
    else:
        sys.meta_path.insert(0, _SeedTorch(seed))


class _SeedTorch(MetaPathFinder):
    """Seeds torch right after its import: a trial draws the same, be it the first in its process to load it or not."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 -- the protocol's arguments
        target: ModuleType | None = None,  # noqa: ARG002 -- likewise
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_seed(module: ModuleType) -> None:
                load(module)
                module.manual_seed(self._seed)

            spec.loader.exec_module = load_and_seed  # type: ignore[method-assign]  # of this one loader object
        return spec
