"""Searchers, rules, policies and engines as plain tables, as study files and the ledger keep them, and back."""

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from trainwright.errors import InputError, closest

__all__ = ["built", "described", "only_known"]

_SEARCHERS = (
    "DefaultSearcher",
    "EvolutionSearcher",
    "ForestSearcher",
    "GaussianProcessSearcher",
    "GridSearcher",
    "OptunaSearcher",
    "QuasiRandomSearcher",
    "RandomSearcher",
)
_RULES = (
    "ASHA",
    "AnyOf",
    "Extrapolate",
    "FixedEpochs",
    "Hyperband",
    "IEpoch",
    "Median",
    "MultiObjectiveASHA",
    "PASHA",
    "Patience",
    "Plateau",
    "SuccessiveHalving",
)
_NAMES = {
    "searcher": _SEARCHERS,
    "rule": _RULES,
    "policy": ("BestStatic", "Doubling", "DoublingAsPublished", "Fixed", "MarginalGain"),
    "stop": ("ExpectedGain",),
    "engine": ("Local", "Ray"),
}


def built(kind: str, table: Mapping[str, Any]) -> Any:
    """Return the searcher, rule, policy or engine that a table's `name` says, made with its other entries.

    Raises `InputError` naming what is unknown or missing.
    """
    names = _NAMES[kind]
    arguments = dict(table)
    name = arguments.pop("name", None)
    if name not in names:
        got = "nothing" if name is None else repr(name)
        raise InputError(f"[{kind}] name: got {got}; allowed: {', '.join(names)}{closest(str(name), names)}")
    maker = getattr(import_module("trainwright"), name)  # by its public name, which loads what it needs
    known = inspect.signature(maker).parameters
    only_known(arguments, list(known), f"[{kind}] {name}")
    missing = [key for key, p in known.items() if p.default is p.empty and key not in arguments]
    if missing:
        raise InputError(f"[{kind}] {name}: {missing[0]!r} is missing; arguments: {', '.join(known)}")
    return maker(**{key: built(kind, v) if isinstance(v, dict) and "name" in v else v for key, v in arguments.items()})


def described(kind: str, given: Any) -> dict[str, Any] | None:
    """Return the table from which `built` makes an equal object; None for one that no table can say."""
    names = _NAMES[kind]
    name = type(given).__name__
    if name not in names or not dataclasses.is_dataclass(given):
        return None
    table: dict[str, Any] = {"name": name}
    for field in dataclasses.fields(given):
        value = getattr(given, field.name)
        if field.default is not dataclasses.MISSING and value == field.default:
            continue
        if type(value).__name__ in names:
            value = described(kind, value)
        if hasattr(value, "to_json"):  # what an earlier study taught
            value = value.to_json()
        if value is None or not _plain(value):
            return None
        table[field.name] = list(value) if isinstance(value, tuple) else value
    return table


def _plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def only_known(given: Iterable[str], allowed: "tuple[str, ...] | list[str]", where: str) -> None:
    """Refuse a name in `given` that is not allowed."""
    for name in given:
        if name not in allowed:
            raise InputError(
                f"{where}: {name!r} is unknown; allowed: {', '.join(allowed) or 'none'}{closest(name, allowed)}"
            )
