"""Functions of the user's own that an option names as MODULE:FUNCTION."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainwright.errors import InputError, TrainwrightError

__all__ = ["function_of", "made_by"]


def function_of(option: str, text: str) -> Callable[[], Any]:
    """Return the function that a text names; raise InputError with the option's name if there is none."""
    module_name, _, name = text.partition(":")
    if not all(module_name.split(".")) or not name:
        raise InputError(f"{option}: got {text!r}; allowed: MODULE:FUNCTION, such as my_project.models:build")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f"{option}: module {module_name!r} cannot be imported: {error}") from None
    found = getattr(module, name, None)
    if not callable(found):
        raise InputError(f"{option}: {module_name} has no function {name!r}; allowed: MODULE:FUNCTION")
    function: Callable[[], Any] = found
    return function


def made_by(option: str, text: str, function: Callable[[], Any]) -> Any:
    """Return what a function returns; raise InputError if it fails."""
    try:
        return function()
    except TrainwrightError:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise InputError(f"{option}: {text} failed with {kind}: {error}; it is called without arguments") from error
