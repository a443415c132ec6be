"""References to training functions by module and name: other processes find them without pickled code."""

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from trainwright.errors import EngineError, TrainwrightError, closest
from trainwright.train.optuna import OptunaObjective

__all__ = [
    "IN_WORKER",
    "LOADING",
    "FunctionReference",
    "load_function",
    "load_module",
    "load_reference",
    "script_boundary",
]

IN_WORKER = "TRAINWRIGHT_WORKER"
"""Set in the environment of worker processes: to `LOADING`, then to the number of the process that runs trials."""
LOADING = "loading"

_SCRIPT = "__mp_main__"  # the name that multiprocessing gives a main script, so that its own children find it too


class _ScriptBoundary(BaseException):
    """Ends the loading of a main script in a worker."""


def script_boundary() -> None:
    """End the loading of the main script here, if this is a worker (or a process that a trial spawned) that loads it.

    `study.run` calls it: all that the worker needs has been defined by then, and the rest is the driver's. A study that
    a trial runs inside itself is let through.
    """
    if os.environ.get(IN_WORKER) not in {None, str(os.getpid())}:
        raise _ScriptBoundary


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionReference:
    """Where a function lives: a module and a name in it, or a script and a name in it."""

    module: str
    name: str
    script: str | None = None
    optuna: str | None = None  # that it takes Optuna's trials

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "FunctionReference":
        """Return the reference of a function, or raise `EngineError` if its name does not lead to it."""
        if isinstance(function, OptunaObjective):
            return replace(cls.of(function.objective), optuna="objective")
        name = getattr(function, "__qualname__", None)
        module = getattr(function, "__module__", None)
        # Qualified names with <locals> or <lambda> lead nowhere from outside.
        if name is not None and "<" in name:
            raise EngineError(
                f"train: {name} is defined inside another function or is a lambda, so a worker process "
                "cannot find it; move it to the top of a module, or use tw.Local(workers=0)"
            )
        if name is None or module is None or _find_name(sys.modules.get(module), name) != function:
            raise EngineError(
                f"train: no name at the top of a module leads to {function!r}, so a worker process cannot find it; "
                "put a plain function there that calls it, or use tw.Local(workers=0)"
            )
        if module not in {"__main__", _SCRIPT}:
            return cls(module=module, name=name)
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        if spec is not None:
            # Started by `python -m package.module`.
            return cls(module=spec.name, name=name)
        # A script is run again by its path; an interactive session has none.
        path = getattr(main, "__file__", None)
        if path is None or not Path(path).exists():
            raise EngineError(
                f"train: {name} was typed into an interactive session, so a worker process cannot find it; "
                "put it into a file and import it, or use tw.Local(workers=0)"
            )
        return cls(module=_SCRIPT, name=name, script=os.path.abspath(path))  # noqa: PTH100 -- links stay links

    def load(self) -> Callable[..., Any]:
        """Return the function, importing its module or running its script up to `study.run`."""
        module = _import_module(self.module) if self.script is None else _run_script(self.script)
        found = _find_name(module, self.name)
        if found is None:
            raise EngineError(
                f"train: {self.script or self.module} defines no {self.name!r} before its first study.run; define it "
                "above, or put the runs under if __name__ == '__main__'"
            )
        return found if self.optuna is None else OptunaObjective(found)


def _find_name(module: ModuleType | None, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _import_module(name: str) -> ModuleType:
    """Import a module; one that calls `study.run` at its top, as under `python -m`, counts as imported up to there."""
    with contextlib.suppress(_ScriptBoundary):
        return importlib.import_module(name)
    # The boundary ended its import, and the import system dropped the module: run it again and keep it.
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 -- it has just been found
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with contextlib.suppress(_ScriptBoundary):
        spec.loader.exec_module(module)
    return module


def _run_script(path: str) -> ModuleType:
    # Under the name that multiprocessing gives it, so that what the script pickles is found.
    module = ModuleType(_SCRIPT)
    module.__file__ = path
    sys.modules[_SCRIPT] = sys.modules["__main__"] = module
    code = compile(Path(path).read_bytes(), path, "exec")
    with contextlib.suppress(_ScriptBoundary):
        exec(code, module.__dict__)  # noqa: S102 -- the user's own script
    return module


def load_function(text: str, what: str = "train") -> Callable[..., Any]:
    """Return the function that "module:function" names; `what` it is for begins the sentence of any mistake."""
    module_name, separator, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not separator or not module_name or not name:
        raise EngineError(f"{what}: got {text!r}; allowed: 'module:function', such as 'my_project.training:train'")
    if not all(module_name.split(".")):
        raise EngineError(f"{what}: {module_name!r} is no module's name; allowed: 'module:function', found {text!r}")
    module = load_module(module_name, what)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
        known = ", ".join(sorted(functions)) or "none"
        raise EngineError(f"{what}: {module_name} has no {name!r}; functions there: {known}{closest(name, functions)}")
    return function  # type: ignore[no-any-return]


def load_module(name: str, what: str = "train") -> ModuleType:
    """Return a module of the user's; raise EngineError with what went wrong in it, and in which line."""
    try:
        return importlib.import_module(name)
    except TrainwrightError:  # a space or a study in it that cannot be: that has a sentence of its own
        raise
    except Exception as error:
        # Only if the module itself, or a parent, is missing; an import inside it that fails has another sentence.
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise EngineError(
                f"{what}: there is no module {name!r} on the path; put its file beside the study file, in the current "
                "directory, or on PYTHONPATH"
            ) from None
        raise EngineError(f"{what}: module {name!r} cannot be imported: {_describe_error(error)}") from error


def load_reference(reference: FunctionReference) -> Callable[..., Any]:
    """Return the function of a reference in a process that is no engine's worker; a script is run to its boundary."""
    # While it loads, this process counts as a worker, so that `study.run` in the script ends the loading.
    before = os.environ.get(IN_WORKER)
    os.environ[IN_WORKER] = LOADING
    try:
        return reference.load()
    except (ImportError, OSError) as error:
        where = reference.script or reference.module
        raise EngineError(
            f"train: {where} cannot be loaded any more ({error}); give it: --train module:function"
        ) from error
    finally:
        if before is None:
            del os.environ[IN_WORKER]
        else:
            os.environ[IN_WORKER] = before


def _describe_error(error: Exception) -> str:
    """Return an error of a user's module with its place there."""
    kind = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{kind}: {error.msg} ({Path(error.filename).name}, line {error.lineno})"
    # The frames of the import system say nothing to whoever wrote the module.
    frames = [each for each in traceback.extract_tb(error.__traceback__) if "importlib" not in each.filename]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{kind}: {error}{place}"
