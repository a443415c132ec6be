"""The combination rules by name, and which of them fits which kind of prediction."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from trainwright.ensemble.combine.means import Weighted
from trainwright.ensemble.combine.mixture import Mixture
from trainwright.ensemble.combine.rule import Rule
from trainwright.errors import EnsembleError, closest
from trainwright.plugins import Registry

__all__ = ["RULES", "default_rule", "rule_of"]

RULES: Mapping[str, Any] = Registry("combination", EnsembleError)
"""Every rule by name, with its default settings."""


def rule_of(told: str | Mapping[str, Any] | Rule, output: str) -> Rule:
    """Return the rule of a name, or of what `to_json` gave, that combines predictions of kind `output`."""
    rule = _made(told) if isinstance(told, str | Mapping) else told
    if output not in rule.outputs:
        fitting = ", ".join(name for name, other in RULES.items() if output in other.outputs)
        raise EnsembleError(f"rule: got {rule.name!r} for predictions that are {output}; allowed: {fitting}")
    return rule


def default_rule(output: str) -> Rule:
    """Return the weighted mean, or for pairs of mean and variance the mixture."""
    return Mixture() if output == "moments" else Weighted()


def _made(told: str | Mapping[str, Any]) -> Rule:
    settings = {"name": told} if isinstance(told, str) else dict(told)
    name = str(settings.pop("name", None))
    if name not in RULES:
        raise EnsembleError(f"rule: got {name!r}; allowed: {', '.join(RULES)}{closest(name, RULES)}")
    known = [field.name for field in fields(RULES[name])]
    if unknown := sorted(set(settings) - set(known)):
        raise EnsembleError(f"rule {name!r}: got setting {unknown[0]!r}; allowed: {', '.join(known) or 'none'}")
    rule: Rule = type(RULES[name])(**{key: tuple(value) for key, value in settings.items()})
    return rule
