"""Combination rules fold the predictions of several members into one: their contract, the fold, and the built-in rules.

Rules of other distributions come in by entry points of the group "trainwright.combinations".
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np

from trainwright.ensemble.metrics import SMALLEST, Array
from trainwright.errors import EnsembleError, closest
from trainwright.plugins import Registry

__all__ = [
    "RULES",
    "AllMembersRule",
    "CombinationRule",
    "GeometricMean",
    "MajorityVote",
    "MedianRule",
    "NormalMixture",
    "PlainMean",
    "WeightedMean",
    "combine",
    "combine_arrived",
    "default_rule",
    "find_rule",
    "make_rule",
]


class CombinationRule(ABC):
    """A fold: `init`, then `add` once per member in member order, then `finish` for the combined prediction.

    Predictions are class probabilities or real values [N, C], or pairs of mean and variance [N, T, 2]. A missing
    member is not added: rules renormalise over the weights of the members that were.
    """

    name: ClassVar[str]  # in study files, manifests and tables
    outputs: ClassVar[tuple[str, ...]]  # kinds of prediction that it combines: "classes", "values", "moments"
    linear: ClassVar[bool] = False  # whether each class is combined from the predictions for that class alone

    @abstractmethod
    def init(self, rows: int, outputs: int) -> Any:
        """Return the state before any member, for N rows and C classes or T outputs."""

    @abstractmethod
    def add(self, state: Any, member: int, prediction: Array, weight: float) -> Any:
        """Return the state with the prediction of member number `member` folded in; `state` is not changed."""

    @abstractmethod
    def finish(self, state: Any) -> Array:
        """Return the combined prediction, in the shape of the members', in float64."""

    def without(self, missing: frozenset[int]) -> "CombinationRule":  # noqa: ARG002 - for subclasses
        """Return the rule to use when these members are missing: itself unless it cannot do without."""
        return self

    def fit(self, predictions: Sequence[Array], targets: Array) -> Self:  # noqa: ARG002 - for subclasses
        """Return the rule fitted to the members' predictions and the targets; itself if it learns nothing."""
        return self

    def to_json(self) -> dict[str, Any]:
        """Return name and settings, from which `trainwright.ensemble.combine.rules.make_rule` makes the rule again."""
        return {"name": self.name, **{key: list(value) for key, value in asdict(self).items()}}  # type: ignore[call-overload]


class AllMembersRule(CombinationRule):
    """A rule of one method, `combine_all`: its state is every member's prediction and weight, by member number."""

    @abstractmethod
    def combine_all(self, predictions: Array, weights: Array) -> Array:
        """Return the combination of predictions [K, N, C] with weights [K], in member order."""

    def init(self, rows: int, outputs: int) -> Mapping[int, tuple[Array, float]]:  # noqa: ARG002 - the fold's form
        """Return the state before any member."""
        return {}

    def add(
        self, state: Mapping[int, tuple[Array, float]], member: int, prediction: Array, weight: float
    ) -> Mapping[int, tuple[Array, float]]:
        """Return the state with one member's prediction."""
        return {**state, member: (prediction.astype(np.float64), weight)}

    def finish(self, state: Mapping[int, tuple[Array, float]]) -> Array:
        """Return the combined prediction."""
        members = [state[number] for number in sorted(state)]
        return self.combine_all(
            np.stack([prediction for prediction, _ in members]), np.array([weight for _, weight in members])
        )


def combine_arrived(
    rule: CombinationRule, arrived: Mapping[int, Array], weights: Sequence[float]
) -> tuple[Array, CombinationRule]:
    """Return the combination of the members that have answered, by number, and the rule that was applied.

    They are reduced in member order, so that every order of arrival gives the same bits. A fitted rule may have no
    meaning for fewer members; it then names the rule that takes its place.
    """
    missing = frozenset(range(len(weights))) - arrived.keys()
    used = rule.without(missing) if missing else rule
    return _fold_members(used, ((member, arrived[member], weights[member]) for member in sorted(arrived))), used


def combine(rule: CombinationRule, predictions: Iterable[Array], weights: Sequence[float]) -> Array:
    """Fold the predictions of all members, taken one at a time in member order, into one by `rule`."""
    pairs = enumerate(zip(predictions, weights, strict=True))
    return _fold_members(rule, ((member, prediction, weight) for member, (prediction, weight) in pairs))


def _fold_members(rule: CombinationRule, members: Iterable[tuple[int, Array, float]]) -> Array:
    state: Any = None
    for member, prediction, weight in members:
        # The first prediction says how many rows and outputs there are.
        state = rule.init(*prediction.shape[:2]) if state is None else state
        state = rule.add(state, member, prediction, weight)
    if state is None:
        raise ValueError("combine needs at least one prediction")
    return np.asarray(rule.finish(state))


_TIE = 1e-9  # share of the mean probability in a vote
_HALF_WIDTH = 1e-12  # by which a share of the weights may differ from one half and still be one half


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightedSum:
    """The state of a mean: the weighted sum of the members' terms in float64, and the sum of weights."""

    total: Array
    weight: float


@dataclass(frozen=True)
class WeightedMean(CombinationRule):
    """The weighted mean; a missing member's weight is shared by the others."""

    name: ClassVar[str] = "weighted"
    outputs: ClassVar[tuple[str, ...]] = ("classes", "values")
    linear: ClassVar[bool] = True

    def init(self, rows: int, outputs: int) -> WeightedSum:
        """Return the state before any member."""
        return WeightedSum(total=np.zeros((rows, outputs)), weight=0.0)

    def add(self, state: WeightedSum, member: int, prediction: Array, weight: float) -> WeightedSum:  # noqa: ARG002
        """Return the state with one member's prediction [N, C] folded in."""
        # float64 throughout: sums of many float16 predictions must not depend on their order.
        term = self._transform_prediction(prediction.astype(np.float64))
        return WeightedSum(total=state.total + weight * term, weight=state.weight + weight)

    def finish(self, state: WeightedSum) -> Array:
        """Return the combined prediction [N, C]."""
        return np.asarray(state.total / state.weight)

    def _transform_prediction(self, prediction: Array) -> Array:
        return prediction


@dataclass(frozen=True)
class PlainMean(WeightedMean):
    """The plain mean: every member counts once, whatever its weight."""

    name: ClassVar[str] = "mean"

    def add(self, state: WeightedSum, member: int, prediction: Array, weight: float) -> WeightedSum:  # noqa: ARG002
        """Return the state with one member's prediction [N, C] folded in."""
        return super().add(state, member, prediction, 1.0)


@dataclass(frozen=True)
class GeometricMean(WeightedMean):
    """The logarithmic opinion pool: softmax of the weighted mean of log p, clipped at 1e-7 (Genest, Zidek 1986)."""

    name: ClassVar[str] = "geometric"
    outputs: ClassVar[tuple[str, ...]] = ("classes",)
    linear: ClassVar[bool] = False

    def finish(self, state: WeightedSum) -> Array:
        """Return the combined probabilities [N, C]."""
        # Subtracting the row's maximum keeps exp from overflowing, and cancels in the shares.
        logs = state.total / state.weight
        odds = np.exp(logs - logs.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    def _transform_prediction(self, prediction: Array) -> Array:
        return np.log(np.maximum(prediction, SMALLEST))


@dataclass(frozen=True)
class MajorityVote(WeightedMean):
    """Shares of the weighted votes for each member's likeliest class; ties go to the greater mean p, then lower class.

    The mean p enters the shares with a weight of 1e-9, which is what decides between equal shares.
    """

    name: ClassVar[str] = "vote"
    outputs: ClassVar[tuple[str, ...]] = ("classes",)
    linear: ClassVar[bool] = False

    def _transform_prediction(self, prediction: Array) -> Array:
        votes = np.zeros_like(prediction)
        votes[np.arange(len(prediction)), prediction.argmax(axis=1)] = 1.0
        return np.asarray((1.0 - _TIE) * votes + _TIE * prediction)


@dataclass(frozen=True)
class MedianRule(AllMembersRule):
    """The weighted median of each class's probability, rows then divided by their sum.

    Where half of the weights lie on either side of a gap it is the gap's middle, so with equal weights the plain
    median. A row whose medians are all 0 is the weighted mean.
    """

    name: ClassVar[str] = "median"
    outputs: ClassVar[tuple[str, ...]] = ("classes",)

    def combine_all(self, predictions: Array, weights: Array) -> Array:
        """Return the combined probabilities [N, C] of predictions [K, N, C]."""
        # Sorted per row and class, the weighted median is where the cumulated weights pass one half.
        order = predictions.argsort(axis=0, kind="stable")
        ordered = np.take_along_axis(predictions, order, axis=0)
        # Half of the weight to within rounding, so that 0.1 + 0.2 against 0.3 is a tie.
        share = weights[order].cumsum(axis=0) / weights.sum()
        low, high = ((share < half).sum(axis=0) for half in (0.5 - _HALF_WIDTH, 0.5 + _HALF_WIDTH))
        high = np.minimum(high, len(predictions) - 1)
        ends = [np.take_along_axis(ordered, at[None], axis=0)[0] for at in (low, high)]
        middle = (ends[0] + ends[1]) / 2
        # Medians of the classes need not sum to 1, and may all be 0 where members disagree.
        sums = middle.sum(axis=1, keepdims=True)
        mean = np.tensordot(weights / weights.sum(), predictions, axes=1)
        return np.where(sums > 0, middle / np.where(sums > 0, sums, 1.0), mean)


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureMoments:
    """Sum of weights, and per row and output [N, T] the mean, squared deviations from it, and variances, weighted."""

    weight: float
    mean: Array
    spread: Array  # sum w (mu_k - mean)^2
    noise: Array  # sum w sigma_k^2


@dataclass(frozen=True)
class NormalMixture(CombinationRule):
    """The mean and variance [N, T, 2] of the weighted mixture of the members' normal distributions.

    Law of total variance, as in AutoDEUQ (Egele et al., arXiv 2110.13511, section III): mu = sum w mu_k and
    variance = sum w sigma_k^2 + sum w (mu_k - mu)^2, the first term aleatoric, the second epistemic.
    """

    name: ClassVar[str] = "mixture"
    outputs: ClassVar[tuple[str, ...]] = ("moments",)

    def init(self, rows: int, outputs: int) -> MixtureMoments:
        """Return the state before any member."""
        nothing = np.zeros((rows, outputs))
        return MixtureMoments(weight=0.0, mean=nothing, spread=nothing, noise=nothing)

    def add(self, state: MixtureMoments, member: int, prediction: Array, weight: float) -> MixtureMoments:  # noqa: ARG002
        """Return the state with one member's means and variances [N, T, 2] folded in."""
        wide = prediction.astype(np.float64)
        mean, variance = wide[..., 0], wide[..., 1]
        if state.weight == 0.0:
            return MixtureMoments(weight=weight, mean=mean, spread=np.zeros_like(mean), noise=weight * variance)
        total, difference = state.weight + weight, mean - state.mean
        # Updated as by Welford (1962): nothing cancels however far the means lie from 0.
        return MixtureMoments(
            weight=total,
            mean=state.mean + difference * (weight / total),
            spread=state.spread + difference**2 * (state.weight * weight / total),
            noise=state.noise + weight * variance,
        )

    def finish(self, state: MixtureMoments) -> Array:
        """Return means and variances [N, T, 2]."""
        return np.stack([state.mean, (state.noise + state.spread) / state.weight], axis=-1)


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
    return type(rule)(**{key: tuple(value) for key, value in settings.items()})
