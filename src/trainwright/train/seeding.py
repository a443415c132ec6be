"""Set the random seeds of a process: Python, NumPy, and torch too when it is not loaded yet."""

import importlib.util
import random
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np

__all__ = ["seed_all"]


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
