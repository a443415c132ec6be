"""Serialises spaces as data: writes them to JSON, and reads them back."""

from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

from trainwright.errors import SpaceError, closest
from trainwright.space.choice import Choice
from trainwright.space.conditions import condition_from_json
from trainwright.space.numeric import Float, Int, prior_from_json
from trainwright.space.parameters import Constant, Derived, Parameter
from trainwright.space.rules import Requirement, requirement_from_json

__all__ = ["parameter_from_json", "space_from_json", "space_to_json"]

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


def _freeze_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
