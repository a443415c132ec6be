"""Searchers, rules, policies and engines as plain tables, as study files and the ledger keep them, and back."""

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np

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
    try:
        return _described(_NAMES[kind], given)
    except TypeError:
        return None


def _described(names: tuple[str, ...], given: Any) -> dict[str, Any]:
    name, ours = type(given).__name__, type(given).__module__.startswith("trainwright.")
    if name not in names or not ours or not dataclasses.is_dataclass(given):
        raise TypeError(name)
    table: dict[str, Any] = {"name": name}
    for field in dataclasses.fields(given):
        value = getattr(given, field.name)
        if field.default is dataclasses.MISSING or value != field.default:
            table[field.name] = _plain(names, value)
    return table


def _plain(names: tuple[str, ...], value: Any) -> Any:
    """Return a value as JSON keeps it, or raise TypeError."""
    if hasattr(value, "to_json"):  # what an earlier study taught
        value = value.to_json()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Fraction):
        value = float(value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(names, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(names, item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return _described(names, value)


def only_known(given: Iterable[str], allowed: "tuple[str, ...] | list[str]", where: str) -> None:
    """Refuse a name in `given` that is not allowed."""
    for name in given:
        if name not in allowed:
            raise InputError(
                f"{where}: {name!r} is unknown; allowed: {', '.join(allowed) or 'none'}{closest(name, allowed)}"
            )
