"""Functions of the user's own that an option names as MODULE:FUNCTION."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainwright.engine.function_reference import load_function
from trainwright.errors import InputError, TrainwrightError

__all__ = ["function_of", "made_by"]


def function_of(option: str, text: str) -> Callable[[], Any]:
    """Return the function that a text names; raise InputError with the option's name if there is none."""
    sys.path.insert(0, str(Path.cwd()))
    return load_function(text, option)


def made_by(option: str, text: str, function: Callable[[], Any]) -> Any:
    """Return what a function returns; raise InputError if it fails."""
    try:
        return function()
    except TrainwrightError:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise InputError(f"{option}: {text} failed with {kind}: {error}; it is called without arguments") from error
