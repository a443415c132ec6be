"""Combination rules: average several members' predictions into one; their contract, and the built-in rules.

Rules of other distributions come in by entry points of the group "trainwright.combinations".
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError, closest
from trainwright.plugins import Registry

__all__ = [
    "RULES",
    "CombinationRule",
    "NormalMixture",
    "PlainMean",
    "WeightedMean",
    "combine",
    "combine_arrived",
    "default_rule",
    "find_rule",
    "make_rule",
    "mixture_parts",
]


class CombinationRule(ABC):
    """A rule is one method, `combine_all`, of all members' predictions and weights in member order.

    Predictions are class probabilities or real values [N, C], or pairs of mean and variance [N, T, 2]. A missing
    member is left out: weights count relative to each other.
    """

    name: ClassVar[str]  # in study files, manifests and tables
    outputs: ClassVar[tuple[str, ...]]  # kinds of prediction that it combines: "classes", "values", "moments"
    linear: ClassVar[bool] = False  # whether each class is combined from the predictions for that class alone

    @abstractmethod
    def combine_all(self, predictions: Array, weights: Array) -> Array:
        """Return the combination [N, ...] of float64 predictions [K, N, ...] with weights [K], in member order."""

    def without(self, missing: frozenset[int]) -> "CombinationRule":  # noqa: ARG002 - for subclasses
        """Return the rule to use when these members are missing: itself unless it cannot do without."""
        return self

    def fit(self, predictions: Sequence[Array], targets: Array) -> Self:  # noqa: ARG002 - for subclasses
        """Return the rule fitted to the members' predictions and the targets; itself if it learns nothing."""
        return self

    def to_json(self) -> dict[str, Any]:
        """Return name and settings, from which `trainwright.ensemble.combine.rules.make_rule` makes the rule again."""
        settings = asdict(self)  # type: ignore[call-overload]  # every rule is a dataclass
        return {
            "name": self.name,
            **{key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()},
        }


def combine(rule: CombinationRule, predictions: Iterable[Array], weights: Sequence[float]) -> Array:
    """Return the combination of all members' predictions, in member order, in float64."""
    # float64 throughout: sums of many float16 predictions must not depend on their order.
    return rule.combine_all(np.stack(list(predictions), dtype=np.float64), np.asarray(weights, dtype=np.float64))


def combine_arrived(rule: CombinationRule, arrived: Mapping[int, Array], weights: Sequence[float]) -> Array:
    """Return the combination of the members that have answered, by number.

    They are combined in member order, so that every order of arrival gives the same bits. A fitted rule may have no
    meaning for fewer members; it then names the rule that takes its place.
    """
    missing = frozenset(range(len(weights))) - arrived.keys()
    used = rule.without(missing) if missing else rule
    members = sorted(arrived)
    return combine(used, [arrived[member] for member in members], [weights[member] for member in members])


@dataclass(frozen=True)
class WeightedMean(CombinationRule):
    """The weighted mean; a missing member's weight is shared by the others."""

    name: ClassVar[str] = "weighted"
    outputs: ClassVar[tuple[str, ...]] = ("classes", "values")
    linear: ClassVar[bool] = True

    def combine_all(self, predictions: Array, weights: Array) -> Array:
        """Return the combined prediction [N, C]."""
        return _weighted_mean(predictions, weights)


@dataclass(frozen=True)
class PlainMean(CombinationRule):
    """The plain mean: every member counts once, whatever its weight."""

    name: ClassVar[str] = "mean"
    outputs: ClassVar[tuple[str, ...]] = ("classes", "values")
    linear: ClassVar[bool] = True

    def combine_all(self, predictions: Array, weights: Array) -> Array:
        """Return the combined prediction [N, C]."""
        return _weighted_mean(predictions, np.ones_like(weights))


@dataclass(frozen=True)
class NormalMixture(CombinationRule):
    """The mean and variance [N, T, 2] of the weighted mixture of the members' normal distributions.

    Law of total variance, as in AutoDEUQ (Egele et al., arXiv 2110.13511, section III): mu = sum w mu_k and
    variance = sum w sigma_k^2 + sum w (mu_k - mu)^2, the first term aleatoric, the second epistemic.
    """

    name: ClassVar[str] = "mixture"
    outputs: ClassVar[tuple[str, ...]] = ("moments",)

    def combine_all(self, predictions: Array, weights: Array) -> Array:
        """Return means and variances [N, T, 2]."""
        mean, noise, spread = mixture_parts(predictions, weights)
        return np.stack([mean, noise + spread], axis=-1)


def mixture_parts(predictions: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Return mean, mean variance and variance of the means [N, T] of a mixture of normal distributions [K, N, T, 2]."""
    first = predictions[0, ..., 0]
    # Distances from the first mean: nothing cancels however far the means lie from 0.
    distances = predictions[..., 0] - first
    distance = _weighted_mean(distances, weights)
    spread = _weighted_mean((distances - distance) ** 2, weights)
    return first + distance, _weighted_mean(predictions[..., 1], weights), spread


def _weighted_mean(terms: Array, weights: Array) -> Array:
    # Added in member order, so that the bits do not depend on how many rows there are.
    total = sum(weight * term for weight, term in zip(weights, terms, strict=True))
    return np.asarray(total / weights.sum())


RULES: Mapping[str, CombinationRule] = Registry("combination", EnsembleError)
"""Every rule by name, built in or installed, with its default settings."""


def default_rule(output: str) -> CombinationRule:
    """Return the weighted mean, or for pairs of mean and variance the mixture."""
    return NormalMixture() if output == "moments" else WeightedMean()


def find_rule(name: str) -> CombinationRule:
    """Return the rule of a name, built in or installed, with its default settings; refuse unknown names."""
    if name not in RULES:
        raise EnsembleError(f"rule: got {name!r}; allowed: {', '.join(RULES)}{closest(name, RULES)}")
    return RULES[name]


def make_rule(description: str | Mapping[str, Any] | CombinationRule, output: str) -> CombinationRule:
    """Return the rule of a name, or of what `to_json` returned, that combines predictions of kind `output`."""
    rule = description
    if isinstance(rule, str | Mapping):
        rule = _make_named(rule)
    if output not in rule.outputs:
        fitting = ", ".join(name for name, other in RULES.items() if output in other.outputs)
        raise EnsembleError(f"rule: got {rule.name!r} for predictions that are {output}; allowed: {fitting}")
    return rule


def _make_named(description: str | Mapping[str, Any]) -> CombinationRule:
    settings = {"name": description} if isinstance(description, str) else dict(description)
    name = str(settings.pop("name", None))
    rule = find_rule(name)
    known = [field.name for field in fields(rule)]  # type: ignore[arg-type]  # every rule is a dataclass
    if unknown := sorted(set(settings) - set(known)):
        raise EnsembleError(f"rule {name!r}: got setting {unknown[0]!r}; allowed: {', '.join(known) or 'none'}")
    return type(rule)(**{key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()})
