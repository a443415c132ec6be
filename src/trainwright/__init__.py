"""Trainwright: from hyperparameter search to a served ensemble.

The public names are those that `__init__.pyi` imports, and are loaded when they are first used, so that `import
trainwright` stays fast and pulls in neither torch, ray nor numba.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def _read_stub() -> dict[str, str]:
    """Return the module of each public name; a package is a name of `trainwright` itself."""
    # Each of its imports is one line: from MODULE import NAME as NAME.
    with open(f"{__file__}i", encoding="utf-8") as stub:  # noqa: PTH123 -- pathlib takes as long to load as all else
        lines = [line.split() for line in stub if line.startswith("from ")]
    return {name: module for _, module, _, name, _, _ in lines}


_HOME = _read_stub()
__all__ = sorted([*_HOME, "__version__"])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'trainwright' has no attribute {name!r}")
    if _HOME[name] == __name__:
        return import_module(f"{__name__}.{name}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
