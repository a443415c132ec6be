"""BoTorch's processes and its acquisitions by sampling as a surrogate (botorch.org; Balandat et al., arXiv 1910.06403).

Noisy expected improvement in its logarithm (Ament et al., arXiv 2310.20708); with several objectives that of the
hypervolume (Daulton et al., arXiv 2105.08195). Bounds are constraints on outputs of the model. Initial design,
candidates, local search, climbs, repeats and pending trials are those of our own loop.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array
from trainwright.errors import MissingExtra
from trainwright.randomness import rng
from trainwright.search.bayes.gaussian_process import Embedding
from trainwright.search.bayes.improvement import Climber
from trainwright.search.bayes.loop import BayesianSearcher, add_penalties, draw_weights, good_rows
from trainwright.search.bayes.targets import standardise_losses, thin_rows
from trainwright.search.searcher import propose
from trainwright.search.view import SearchView
from trainwright.space import Space
from trainwright.space.configuration import Configuration
from trainwright.validators import integer

if TYPE_CHECKING:
    import torch

__all__ = ["BoTorchSearcher"]


_CHUNK = 256  # rows that are asked at once: memory grows with their number times that of the samples
_BEYOND_WORST = 0.1  # of a standard deviation: from the worst result to the hypervolume's reference point


class _Acquired(Climber):
    """An acquisition function of BoTorch, a logarithm, over the points of a space."""

    def __init__(self, space: Space, embedding: Embedding, function: Any) -> None:
        super().__init__(space, embedding)
        self._function = function

    def predict(self, rows: Array) -> Array:
        """Return the acquisition [1, rows]."""
        import torch

        points = _tensor(self._embedding(rows))[:, None, :]
        with torch.no_grad():
            return np.concatenate([self._function(part).numpy() for part in points.split(_CHUNK)])[None, :]

    def descent(
        self,
        units: Array,
        point: Array,
        places: NDArray[np.intp],
        row: Array,  # noqa: ARG002 -- for acquisitions over rows
        columns: NDArray[np.intp],  # noqa: ARG002
    ) -> tuple[float, Array]:
        """Return minus the acquisition and its gradient by some units of a point."""
        point[places] = units
        asked = _tensor(point)[None, :].requires_grad_()
        value = -self._function(asked).sum()
        value.backward()
        gradient: Array = np.asarray(asked.grad)[0, places]
        return float(value), gradient


@dataclass(frozen=True, kw_only=True, slots=True)
class BoTorchSearcher(BayesianSearcher):
    """Propose where a `SingleTaskGP` of BoTorch expects the most improvement over all results, allowing for noise.

    Handles what `GaussianProcessSearcher` does, but priors shape its candidates only. Several objectives are searched
    for the hypervolume of their front. The model is fitted anew for each ask: about 0.3 s with one objective, seconds
    with several.
    """

    name: ClassVar[str] = "botorch"

    max_rows: Annotated[int, integer(minimum=20), "rows that the model holds"] = 300
    samples: Annotated[int, integer(minimum=8), "draws of the model over which improvements are averaged"] = 128

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[Configuration]:
        """Return one new configuration per number; raises `MissingExtra` at the first trial, not after the design."""
        if find_spec("botorch") is None:
            raise MissingExtra.of("BoTorchSearcher", "botorch", "botorch")
        return BayesianSearcher.ask(self, view, numbers)

    def _ask_surrogate(self, view: SearchView, numbers: Sequence[int], taken: set[bytes]) -> list[Configuration]:
        """Choose one after the other; those before count as tried, with results that the model has to guess."""
        embedding = Embedding(view.space, fidelity=view.partial)
        places = thin_rows(view, view.count, self.max_rows)
        pairs = [
            standardise_losses(column, bound)
            for column, bound in zip(view.outcomes[places].T, view.bounds, strict=True)
        ]
        targets, bounds = np.stack([y for y, _ in pairs]), np.array([bound for _, bound in pairs])
        weights = draw_weights(rng(view.seed, "weights", numbers[0]), view.objectives)
        order = np.argsort(weights @ add_penalties(targets, view.objectives, bounds), kind="stable")
        proposals = []
        with _quietly(int(rng(view.seed, "botorch", numbers[0]).integers(2**31))):
            model = _fit(embedding(view.rows[places], view.progress[places]), targets)
            # Improvements are those over all configurations at full length, whatever their trials have reached.
            tried = np.unique(embedding(np.concatenate([view.rows[places], view.pending])), axis=0)
            for trial in numbers:
                seed = int(rng(view.seed, "samples", trial).integers(2**31))
                function = _acquire(
                    model, tried, targets, bounds, objectives=view.objectives, samples=self.samples, seed=seed
                )
                acquired = _Acquired(view.space, embedding, function)
                acquired.good = good_rows(view, places[order])
                [row] = self._choose(view, acquired, [trial], view.tried, taken)
                tried = np.concatenate([tried, embedding(row[None, :])])
                proposals.append(propose(view, row, trial, searcher=self.name))
        return proposals


def _fit(points: Array, targets: Array) -> Any:
    """Return a model of minus the targets [outcomes, rows]: BoTorch maximises."""
    from botorch.exceptions.errors import ModelFittingError
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    def make() -> Any:
        return SingleTaskGP(_tensor(points), _tensor(-targets.T), outcome_transform=None)  # they are standardised

    model = make()
    try:
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    except ModelFittingError:
        return make()  # as its priors have it
    return model


def _acquire(
    model: Any, tried: Array, targets: Array, bounds: Array, *, objectives: int, samples: int, seed: int
) -> Any:
    """Return the logarithm of the noisy expected improvement over points that were `tried`."""
    import torch
    from botorch.acquisition.logei import qLogNoisyExpectedImprovement
    from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
    from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
    from botorch.acquisition.objective import LinearMCObjective
    from botorch.sampling.normal import SobolQMCNormalSampler

    def excess(j: int, bound: float) -> Any:
        return lambda Y: -Y[..., j] - bound  # a constraint is kept where this is not positive

    constraints = [excess(j, float(bounds[j])) for j in np.flatnonzero(np.isfinite(bounds)).tolist()]
    shared: dict[str, Any] = {
        "X_baseline": _tensor(tried),
        "sampler": SobolQMCNormalSampler(sample_shape=torch.Size([samples]), seed=seed),
        "constraints": constraints or None,
        "prune_baseline": True,
    }
    if objectives == 1:
        first = torch.eye(len(targets), dtype=torch.float64)[0]
        return qLogNoisyExpectedImprovement(model, objective=LinearMCObjective(first), **shared)
    worst = -targets[:objectives].max(axis=1) - _BEYOND_WORST
    return qLogNoisyExpectedHypervolumeImprovement(
        model, ref_point=worst.tolist(), objective=IdentityMCMultiOutputObjective(list(range(objectives))), **shared
    )


def _tensor(values: Array) -> "torch.Tensor":
    import torch

    return torch.tensor(values, dtype=torch.float64)


@contextmanager
def _quietly(seed: int) -> Iterator[None]:
    """Keep torch's random state, and BoTorch's warnings about data and fits from the user."""
    import torch

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        yield
