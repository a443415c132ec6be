"""Training functions by name: how one is found again in another process, without pickling code."""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from trainwright.errors import EngineError, closest

__all__ = ["IN_WORKER", "FunctionReference", "ScriptBoundary", "load_function"]

IN_WORKER = "TRAINWRIGHT_WORKER"
"""Set in the environment of worker processes."""

_SCRIPT = "__mp_main__"  # the name that multiprocessing gives a main script, so that its own children find it too


class ScriptBoundary(BaseException):
    """Raised by `study.run` in a worker that is loading the main script: all it needs has been defined by then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionReference:
    """Where a function lives: a module and a name in it, or a script and a name in it."""

    module: str
    name: str
    script: str | None = None

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "FunctionReference":
        """Return the reference of a function or a callable instance of a module-level name."""
        name = getattr(function, "__qualname__", None)
        module = getattr(function, "__module__", None)
        if name is None or module is None or "<" in name:
            raise EngineError(
                f"train: {name or function!r} is defined inside another function or is a lambda, so a worker process "
                "cannot find it; move it to the top of a module, or use tw.Local(workers=0)"
            )
        if module not in {"__main__", _SCRIPT}:
            return cls(module=module, name=name)
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        if spec is not None:  # python -m package.module
            return cls(module=spec.name, name=name)
        path = getattr(main, "__file__", None)
        if path is None or not Path(path).exists():
            raise EngineError(
                f"train: {name} was typed into an interactive session, so a worker process cannot find it; "
                "put it into a file and import it, or use tw.Local(workers=0)"
            )
        return cls(module=_SCRIPT, name=name, script=os.path.abspath(path))  # noqa: PTH100 -- links stay links

    def load(self) -> Callable[..., Any]:
        """Return the function, importing its module or running its script up to `study.run`."""
        module = importlib.import_module(self.module) if self.script is None else _run_script(self.script)
        found: Any = module
        for part in self.name.split("."):
            found = getattr(found, part)
        return found  # type: ignore[no-any-return]


def _run_script(path: str) -> ModuleType:
    module = ModuleType(_SCRIPT)
    module.__file__ = path
    sys.modules[_SCRIPT] = sys.modules["__main__"] = module
    code = compile(Path(path).read_bytes(), path, "exec")
    with contextlib.suppress(ScriptBoundary):
        exec(code, module.__dict__)  # noqa: S102 -- the user's own script
    return module


def load_function(text: str) -> Callable[..., Any]:
    """Return the function that "module:function" names, with a sentence about whatever is wrong with it."""
    module_name, separator, name = text.partition(":")
    if not separator or not module_name or not name:
        raise EngineError(f"train: got {text!r}; allowed: 'module:function', such as 'my_project.training:train'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise  # a module that the user's module imports: its own traceback says it best
        raise EngineError(f"train: there is no module {module_name!r} on the path; looked for {text!r}") from None
    function = getattr(module, name, None)
    if not callable(function):
        functions = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
        known = ", ".join(sorted(functions)) or "none"
        raise EngineError(f"train: {module_name} has no {name!r}; functions there: {known}{closest(name, functions)}")
    return function  # type: ignore[no-any-return]
