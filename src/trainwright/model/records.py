"""Reads dataclasses from JSON by their annotations: chains, profiles and plans, with the records inside them."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from trainwright.errors import InputError, closest

__all__ = ["check_schema", "read_record"]

_Record = TypeVar("_Record")
_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def check_schema(content: Any, schema: int, where: str, error: type[InputError], advice: str) -> Mapping[str, Any]:
    """Return the object of a file, if it is one of this schema; else raise `error`, with `advice` on how to mend it."""
    if not isinstance(content, Mapping):
        raise error(f"{where}: got {type(content).__name__}; allowed: an object{advice}")
    if content.get("schema") != schema:
        raise error(f"{where}, schema: got {content.get('schema')!r}; allowed: {schema}{advice}")
    return content


def read_record(
    kind: type[_Record], content: Any, where: str, error: type[InputError] = InputError, advice: str = ""
) -> _Record:
    """Return the dataclass that a JSON object holds, and in it tuples and other dataclasses.

    Raises `error` for what is no object, or no list where there are several, for unknown and missing fields and for
    values that the dataclass refuses: the sentence begins with `where` that is and ends with `advice`.
    """
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]  # only dataclasses are asked for
    if not isinstance(content, Mapping):
        raise error(f"{where}: got {content!r}; allowed: an object with {', '.join(known)}{advice}")
    for name in content:
        if name not in known:
            raise error(
                f"{where}: got the field {name!r}; allowed: {', '.join(known)}{closest(str(name), known)}{advice}"
            )
    for name, each in known.items():
        if each.default is MISSING and each.default_factory is MISSING and content.get(name) is None:
            raise error(f"{where}, {name}: got nothing; allowed: a value{advice}")
    hints = _hints(kind)
    values = {
        name: _read_value(hints[name], value, f"{where}, {name}", error, advice) for name, value in content.items()
    }
    try:
        return kind(**values)
    except InputError as failure:
        raise error(f"{where}: {failure}{advice}") from failure


def _read_value(hint: Any, value: Any, where: str, error: type[InputError], advice: str) -> Any:
    if NoneType in get_args(hint):
        if value is None:
            return None
        hint = next(each for each in get_args(hint) if each is not NoneType)
    if is_dataclass(hint):
        return read_record(hint, value, where, error, advice)  # type: ignore[arg-type]  # a class
    if get_origin(hint) is Mapping and not isinstance(value, Mapping):
        raise error(f"{where}: got {value!r}; allowed: an object{advice}")
    if get_origin(hint) is not tuple:
        return value
    if not isinstance(value, list | tuple):
        raise error(f"{where}: got {value!r}; allowed: a list{advice}")
    inner = get_args(hint)[0]
    records = is_dataclass(inner)
    # Elements are counted from 1: of "chain, stages" the second is "chain, stage 2".
    return tuple(
        read_record(inner, each, f"{where[:-1]} {place}", error, advice) if records else each
        for place, each in enumerate(value, start=1)
    )
