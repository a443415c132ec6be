"""Loads plug-ins by name: searchers, rules, engines and other kinds, built-in or from entry points of distributions.

A built-in is listed here as "module:Class" and loaded when it is first used. A distribution adds others by entry
points, in the group of their kind:

    [project.entry-points."trainwright.searchers"]
    HillClimber = "hill_climb:HillClimber"

Study files and the ledger keep an object as a table: its name and its settings, and of a plug-in in "from" the
distribution and its version, so that a process that lacks it can say what to install.
"""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

import numpy as np

from trainwright.errors import InputError, closest
from trainwright.settings import refuse_unknown

__all__ = ["Registry", "describe", "load", "make", "names_of"]

_ORIGIN = "from"
"""The entry of a table that names a plug-in's distribution; no argument can be called so."""


_OPTUNA = "trainwright.integrations.optuna.searcher:OptunaSearcher"
_RULES = "trainwright.ensemble.combine.rules"


def _list_names(module: str, names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names.split()}


# The built-in ones of each kind, as "module:Class".
_BUILT_IN: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "searcher": _list_names(
            "trainwright.search",
            "DefaultSearcher EvolutionSearcher ForestSearcher GaussianProcessSearcher GridSearcher "
            "QuasiRandomSearcher RandomSearcher",
        )
        | {"BoTorchSearcher": "trainwright.integrations.botorch:BoTorchSearcher", "OptunaSearcher": _OPTUNA},
        "rule": _list_names(
            "trainwright.schedule",
            "ASHA AnyOf FixedEpochs Hyperband IEpoch Median MultiObjectiveASHA PASHA Patience Plateau "
            "PopulationBasedTraining SuccessiveHalving",
        ),
        "policy": _list_names("trainwright.schedule", "BestStatic Doubling DoublingAsPublished Fixed MarginalGain"),
        "engine": {
            "Local": "trainwright.engine:Local",
            "PyCOMPSs": "trainwright.integrations.pycompss:PyCOMPSs",
            "Ray": "trainwright.engine.ray.engine:Ray",
        },
        # Ledgers are named by the scheme of their URLs, and called with the URL.
        "ledger": dict.fromkeys(("redis", "rediss"), "trainwright.ledger:RedisLedger"),
        "format": {
            "torch": "trainwright.checkpoint.tools.formats.torch_zip:TorchZip",
            "safetensors": "trainwright.checkpoint.tools.formats.safetensors:SafeTensors",
        },
        "combination": {
            "weighted": f"{_RULES}:WeightedMean",
            "mean": f"{_RULES}:PlainMean",
            "mixture": f"{_RULES}:NormalMixture",
            "stacking": "trainwright.ensemble.combine.stacking:Stacking",
            "linear": "trainwright.ensemble.combine.stacking:LinearStacking",
        },
        # Strategies are named by the axis that they divide along.
        "strategy": {
            "channel": "trainwright.plan.parallel.strategies.filter:ChannelStrategy",
            "context": "trainwright.plan.parallel.strategies.context:ContextStrategy",
            "data": "trainwright.plan.parallel.strategies.data:DataStrategy",
            "expert": "trainwright.plan.parallel.strategies.expert:ExpertStrategy",
            "filter": "trainwright.plan.parallel.strategies.filter:FilterStrategy",
            "pipeline": "trainwright.plan.parallel.strategies.pipeline:PipelineStrategy",
            "spatial": "trainwright.plan.parallel.strategies.spatial:SpatialStrategy",
            "tensor": "trainwright.plan.parallel.strategies.tensor:TensorStrategy",
        },
    }
)


def names_of(kind: str) -> tuple[str, ...]:
    """Return the names of a kind: the built-in ones, then those of installed plug-ins in alphabetical order."""
    built_in = _BUILT_IN[kind]
    return (*built_in, *sorted(_plug_ins(kind).keys() - built_in.keys()))


def load(kind: str, name: str, where: str, error: type[InputError] = InputError) -> Any:
    """Return the class (or whatever its entry point names) of that kind and name.

    Raises `error`, whose sentence begins with `where`, for a name that is unknown or offered by two distributions, and
    for a plug-in that cannot be imported.
    """
    target = _BUILT_IN[kind].get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        return getattr(import_module(module), attribute)
    offers = _plug_ins(kind).get(name, ())
    if not offers:
        known = names_of(kind)
        raise error(f"{where}: got {name!r}; allowed: {', '.join(known)}{closest(name, known)}")
    if len(offers) > 1:
        raise error(f"{where}: {name!r} is offered by {' and '.join(map(_name_origin, offers))}; uninstall all but one")
    try:
        return offers[0].load()
    except Exception as trouble:
        why = f"{type(trouble).__name__}: {trouble}"
        raise error(f"{where}: {name!r} of {_name_origin(offers[0])} cannot be loaded ({why})") from trouble


class Registry(Mapping[str, Any]):
    """Every object of a kind by name, with its default settings: each is made when it is first looked up.

    The entry point of a plug-in is to have the name that the object says it has.
    """

    def __init__(self, kind: str, error: type[InputError] = InputError) -> None:
        self._kind = kind
        self._error = error
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            if name not in names_of(self._kind):
                raise KeyError(name)
            item = load(self._kind, name, self._kind, self._error)()
            if item.name != name:
                raise self._error(f"{self._kind}: {name!r} is called {item.name!r} by itself; allowed: one name")
            self._made[name] = item
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in names_of(self._kind)

    def __iter__(self) -> Iterator[str]:
        return iter(names_of(self._kind))

    def __len__(self) -> int:
        return len(names_of(self._kind))


def make(kind: str, table: Mapping[str, Any]) -> Any:
    """Return the object that a table's `name` says, made with its other entries as arguments.

    Raises `InputError` naming what is unknown or missing, or the distribution that has to be installed.
    """
    arguments = dict(table)
    name, origin = arguments.pop("name", None), arguments.pop(_ORIGIN, None)
    if name is None:
        raise InputError(f"[{kind}] name: got nothing; allowed: {', '.join(names_of(kind))}")
    # Plug-ins are looked for only where one is named: that reads the metadata of everything installed.
    if origin is not None and name not in names_of(kind):
        raise InputError(
            f"[{kind}] name: got {name!r}, a plug-in of {origin}, which is not installed here; install {origin}"
        )
    maker = load(kind, str(name), f"[{kind}] name")
    parameters = inspect.signature(maker).parameters
    refuse_unknown(arguments, list(parameters), f"[{kind}] {name}")
    missing = [key for key, one in parameters.items() if one.default is one.empty and key not in arguments]
    if missing:
        raise InputError(f"[{kind}] {name}: {missing[0]!r} is missing; arguments: {', '.join(parameters)}")
    # A table within a table, such as the two rules of AnyOf, is one more object of the same kind.
    nested = {key: make(kind, value) for key, value in arguments.items() if isinstance(value, dict) and "name" in value}
    return maker(**(arguments | nested))


def describe(kind: str, item: Any) -> dict[str, Any] | None:
    """Return the table from which `make` makes an equal object; None for one that no table can say.

    None are objects that are no dataclasses, and those of a class that is neither built in nor a plug-in.
    """
    try:
        return _describe_object(kind, item)
    except TypeError:
        return None


def _describe_object(kind: str, item: Any) -> dict[str, Any]:
    name, origin = _identify_class(kind, type(item))
    if name is None or not dataclasses.is_dataclass(item):
        raise TypeError(f"no table can say {type(item).__name__}")
    table: dict[str, Any] = {"name": name}
    if origin is not None:
        table[_ORIGIN] = origin
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        if field.init and (field.default is dataclasses.MISSING or value != field.default):
            table[field.name] = _to_plain(kind, value)
    return table


def _identify_class(kind: str, cls: type) -> tuple[str | None, str | None]:
    """Return the name of a class among those of a kind, and of a plug-in its distribution and version."""
    if cls.__module__.startswith("trainwright.") and cls.__name__ in _BUILT_IN[kind]:
        return cls.__name__, None
    package = cls.__module__.partition(".")[0]
    for name, offers in _plug_ins(kind).items():
        # Only plug-ins of the same package are loaded to be compared: others may be slow to import.
        if len(offers) == 1 and offers[0].module.partition(".")[0] == package and offers[0].load() is cls:
            return name, _name_origin(offers[0])
    return None, None


def _to_plain(kind: str, value: Any) -> Any:
    """Return a value as JSON keeps it, or raise TypeError."""
    if hasattr(value, "to_json"):
        # What an earlier study taught.
        value = value.to_json()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Fraction):
        value = float(value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _to_plain(kind, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(kind, item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return _describe_object(kind, value)


def _plug_ins(kind: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the entry points of a kind by name."""
    plural = {"policy": "policies", "strategy": "strategies"}.get(kind, f"{kind}s")
    return _read_group(f"trainwright.{plural}")


@cache
def _read_group(group: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    # Cached, since it reads the metadata of every installed distribution; what is installed later counts from the next
    # start of Python. One distribution may be found twice, through two entries of the path.
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=group):
        found.setdefault(entry.name, {}).setdefault(_name_origin(entry), entry)
    return {name: tuple(offers.values()) for name, offers in found.items()}


def _name_origin(entry: EntryPoint) -> str:
    """Return the distribution of an entry point and its version, as pip would take them."""
    return "an unknown distribution" if entry.dist is None else f"{entry.dist.name}=={entry.dist.version}"
