"""Spaces as data: reading what `to_json` wrote, and telling two spaces apart in words."""

from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

from trainwright.errors import SpaceError, closest
from trainwright.space.choice import Choice
from trainwright.space.conditions import condition_from_json
from trainwright.space.numeric import Float, Int, prior_from_json
from trainwright.space.parameters import Constant, Derived, Parameter
from trainwright.space.rules import Requirement, requirement_from_json

__all__ = ["describe_differences", "parameter_from_json", "space_from_json", "space_to_json"]

Document = Mapping[str, Any]


def space_to_json(parameters: Mapping[str, Parameter], requirements: tuple[Requirement, ...]) -> dict[str, Any]:
    """Return a space as data; parameters are a list, because their order is the order of the columns."""
    return {
        "parameters": [{"name": name} | parameter.to_json() for name, parameter in parameters.items()],
        "requirements": [requirement.to_json() for requirement in requirements],
    }


def space_from_json(document: Any) -> tuple[dict[str, Parameter], list[Requirement]]:
    """Return the parameters and requirements of a document."""
    if not isinstance(document, Mapping) or not isinstance(document.get("parameters"), list | tuple):
        raise SpaceError(f"space {document!r} cannot be read; its 'parameters' must be a list")
    parameters: dict[str, Parameter] = {}
    for entry in document["parameters"]:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise SpaceError(f"parameter {entry!r} cannot be read; it needs a 'name'")
        if entry["name"] in parameters:
            raise SpaceError(f"{entry['name']}: is listed twice; a parameter has one entry")
        parameters[entry["name"]] = parameter_from_json(
            entry["name"], {key: value for key, value in entry.items() if key != "name"}
        )
    return parameters, [requirement_from_json(entry) for entry in document.get("requirements", ())]


def parameter_from_json(name: str, document: Any) -> Parameter:
    """Return a parameter of the given name from its kind and arguments, as `to_json` or a study file writes them."""
    kinds: dict[str, type[Parameter]] = {cls.kind: cls for cls in (Float, Int, Choice, Constant, Derived)}
    if not isinstance(document, Mapping) or not isinstance(document.get("kind"), str):
        raise SpaceError(f"{name}: {document!r} lacks a kind; allowed: {', '.join(kinds)}")
    kind = kinds.get(document["kind"])
    if kind is None:
        near = closest(document["kind"], kinds)
        raise SpaceError(f"{name}: kind {document['kind']!r} is unknown; allowed: {', '.join(kinds)}{near}")
    known = kind.known()
    arguments = {key: _freeze_list(value) for key, value in document.items() if key != "kind"}
    for key in arguments:
        if key not in known:
            near = closest(key, known)
            raise SpaceError(f"{name}: {key!r} is no argument of {kind.kind}; known: {', '.join(known)}{near}")
    # Named before Python's own TypeError would be.
    for key, field in known.items():
        if field.default is MISSING and key not in arguments:
            raise SpaceError(f"{name}: {kind.kind} needs {key!r}; known: {', '.join(known)}")
    if arguments.get("when") is not None:
        arguments["when"] = condition_from_json(arguments["when"])
    if arguments.get("prior") is not None:
        arguments["prior"] = prior_from_json(arguments["prior"])
    if kind is Choice:
        values = arguments.pop("values")
        if not isinstance(values, tuple):
            raise SpaceError(f"{name}: values must be a list, got {values!r}")
        return Choice(*map(_freeze_list, values), **arguments)
    return kind(**arguments)


def describe_differences(old: Document, new: Document) -> list[str]:
    """Return what a new space has otherwise than an old one: "width in [16, 256], now [16, 512]"."""
    # By name: a parameter that moved is the same parameter.
    before = {entry["name"]: entry for entry in old["parameters"]}
    after = {entry["name"]: entry for entry in new["parameters"]}
    found = [f"{name}, now absent" for name in before if name not in after]
    found += [f"no {name}, now {after[name]['kind']}" for name in after if name not in before]
    for name, entry in before.items():
        found += _describe_changes(name, entry, after.get(name, entry))
    # Order matters: columns follow it, and so do rows of a ledger.
    if not found and list(before) != list(after):
        found.append(f"the order {', '.join(before)}, now {', '.join(after)}")
    rules, others = old["requirements"], new["requirements"]
    found += [f"requirement {_describe_rule(rule)}, now absent" for rule in rules if rule not in others]
    found += [f"no requirement {_describe_rule(rule)}, now required" for rule in others if rule not in rules]
    if not found and rules != others:
        found.append("its requirements in another order")
    return found


def _describe_changes(name: str, old: Document, new: Document) -> list[str]:
    if old["kind"] != new["kind"]:
        return [f"{name} as {old['kind']}, now {new['kind']}"]
    found = []
    # Bounds are named together: "in [16, 256]" reads better than two changes.
    if "low" in old and [old["low"], old["high"]] != [new["low"], new["high"]]:
        found.append(f"{name} in [{old['low']!r}, {old['high']!r}], now [{new['low']!r}, {new['high']!r}]")
    if "values" in old and _typed_repr(old["values"]) != _typed_repr(new["values"]):
        found.append(f"{name} in {old['values']!r}, now {new['values']!r}")
    for key in dict.fromkeys([*old, *new]):
        # An argument at its default is not written, so it may be absent on either side.
        was, now = old.get(key), new.get(key)
        if key not in ("low", "high", "values") and _typed_repr(was) != _typed_repr(now):
            found.append(f"{name} with {key}={was!r}, now {now!r}")
    return found


def _typed_repr(value: Any) -> str:
    return repr(value)  # tells 1, 1.0 and True apart, as the fingerprint does


def _describe_rule(document: Document) -> str:
    return repr(document["text"])


def _freeze_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
