"""Reads dataclasses from parsed files by their annotations: clusters, chains, profiles and plans, with those inside.

What is wrong is told by its path of keys, and places in lists; who reads makes an error of it with `Fail`.
"""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from trainwright.errors import InputError, closest

__all__ = ["Fail", "KeyPath", "check_schema", "fail_with", "read_record", "read_value"]

_Record = TypeVar("_Record")
_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)

KeyPath = tuple[str | int, ...]
Fail = Callable[[KeyPath, str], InputError]
"""Makes the error of a path and what is wrong there."""

_WORDS = {bool: "true or false", str: "a text", float: "a number", int: "a whole number"}


def fail_with(where: str, error: type[InputError] = InputError, advice: str = "") -> Fail:
    """Return errors of a class that begin with `where` it is and end with `advice`: "plan x, stage 2, alpha: got ...".

    Elements are counted from 1: of "stages" the second is "stage 2".
    """

    def fail(path: KeyPath, problem: str) -> InputError:
        words = where
        for part in path:
            words = f"{words[:-1]} {part + 1}" if isinstance(part, int) else f"{words}, {part}".removeprefix(", ")
        return error(f"{words}: {problem}{advice}")

    return fail


def check_schema(content: Any, schema: int, fail: Fail) -> Mapping[str, Any]:
    """Return the object of a file, if it is one of this schema; else raise what `fail` makes."""
    if not isinstance(content, Mapping):
        raise fail((), f"got {type(content).__name__}; allowed: an object")
    if content.get("schema") != schema:
        raise fail(("schema",), f"got {content.get('schema')!r}; allowed: {schema}")
    return content


def read_record(
    kind: type[_Record],
    content: Any,
    fail: Fail,
    path: KeyPath = (),
    *,
    names: Mapping[str, str] = {},
    needed: Mapping[type, tuple[str, ...]] = {},
) -> _Record:
    """Return the dataclass that a mapping holds, and in it tuples, mappings and other dataclasses.

    `names` are the keys of fields that are not called as the field; `needed` those of each class that must be there
    although they have a default. Raises what `fail` makes for content of another shape, unknown and missing keys, and
    values that the dataclass refuses.
    """
    known = {names.get(each.name, each.name): each for each in fields(kind) if each.init}  # type: ignore[arg-type]
    if not isinstance(content, Mapping):
        raise fail(path, f"got {reprlib.repr(content)}; allowed: a table of keys: {', '.join(known)}")
    # Unknown keys are refused before missing ones: a misspelt key is both.
    for key in content:
        if key not in known:
            raise fail((*path, str(key)), f"unknown key; allowed: {', '.join(known)}{closest(str(key), known)}")
    for key, each in known.items():
        optional = each.default is not MISSING or each.default_factory is not MISSING
        if (key not in content if optional else content.get(key) is None) and not (
            optional and key not in needed.get(kind, ())
        ):
            raise fail((*path, key), "missing; every file has it")
    hints = _hints(kind)
    values = {
        known[key].name: read_value(hints[known[key].name], value, fail, (*path, key), names=names, needed=needed)
        for key, value in content.items()
    }
    try:
        return kind(**values)
    except InputError as error:
        # "NetworkLevel.bandwidth: got -1; allowed: ...": the path says where that is.
        where, _, problem = str(error).partition(": ")
        if not where.startswith(f"{kind.__name__}."):
            raise fail(path, str(error)) from error
        raise fail((*path, *_path_below(where, names)), problem) from error


def read_value(hint: Any, value: Any, fail: Fail, path: KeyPath, **reading: Any) -> Any:
    """Return a value of an annotation: a dataclass, a tuple or mapping of one kind, a number, a text or a flag."""
    inner = get_args(hint)
    if NoneType in inner:
        if value is None:
            return None
        hint = next(each for each in inner if each is not NoneType)
        inner = get_args(hint)
    if is_dataclass(hint):
        return read_record(hint, value, fail, path, **reading)  # type: ignore[arg-type]  # a class
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise fail(path, f"got {reprlib.repr(value)}; allowed: a list")
        return tuple(read_value(inner[0], each, fail, (*path, i), **reading) for i, each in enumerate(value))
    if get_origin(hint) is Mapping:
        if not isinstance(value, Mapping):
            raise fail(path, f"got {reprlib.repr(value)}; allowed: a table of keys")
        return {str(key): read_value(inner[1], each, fail, (*path, str(key)), **reading) for key, each in value.items()}
    if hint in _WORDS:
        return _read_scalar(hint, value, fail, path)
    return value


def _read_scalar(kind: Any, value: Any, fail: Fail, path: KeyPath) -> Any:
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    fits = isinstance(value, int | float if kind is float else kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise fail(path, f"got {reprlib.repr(value)}; allowed: {_WORDS[kind]}")
    return value


def _path_below(where: str, names: Mapping[str, str]) -> KeyPath:
    """Return the path in "Cluster.tiers[2].name" below its record: ("tier", 2, "name")."""
    path: list[str | int] = []
    for part in where.split(".")[1:]:
        key, _, place = part.rstrip("]").partition("[")
        path.append(names.get(key, key))
        path += [int(place)] if place else []
    return tuple(path)
