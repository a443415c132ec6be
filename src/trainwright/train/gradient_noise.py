"""Measures the gradient noise scale while training, and says what larger batches are worth (AdaScale's gain).

The trace of the covariance of a sample's gradient over the squared norm of the mean gradient: the batch at which one
step of twice the size saves about a quarter of the steps (McCandlish et al., arXiv 1812.06162). It needs the norms of
gradients of two batches: those of a micro-batch, or of each rank before they are summed, and that of the whole batch
(appendix A.1). Where there is one gradient a step, two steps in a row are compared, as Pollux does (Qiao et al., OSDI
2021). One step in ten is measured: it costs two norms, or one copy of the gradients.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainwright.schedule.allocator.estimates import adascale_gain
from trainwright.train.gradient_step import gradient_norm

if TYPE_CHECKING:
    import torch

    from trainwright.train.gradient_step import GradientStep
    from trainwright.train.parallel.model import Parallel

__all__ = ["GradientNoise"]

_EVERY = 10
"""Steps from one measured to the next."""
_DECAY = 0.9
"""Of the averages of variance and squared norm, for each measurement."""


class GradientNoise:
    """Averages of what was measured, as an item of a trial's checkpoints; `reference` is the batch of the loader."""

    def __init__(self, gradients: "GradientStep", parallel: "Parallel | None", *, reference: int) -> None:
        self._reference = reference
        self._gradients, self._parallel = gradients, parallel
        self._steps = 0
        self._due = False
        # Averages, from zero both: their ratio is not biased by that.
        self._variance, self._square = 0.0, 0.0
        # Of the step at hand: squares of the gradients of its parts, and how many samples each was of.
        self._squares: list[torch.Tensor] | None = None
        self._part = 0
        self._before: list[torch.Tensor] | None = None

    @property
    def scale(self) -> float | None:
        """The noise scale in samples; None until it is measured."""
        # Estimates may be negative for a while where there is nearly no noise, or nearly no gradient.
        return max(self._variance, 0.0) / max(self._square, 1e-30) if self._variance or self._square else None

    @property
    def pending(self) -> bool:
        """Whether the next step is to be compared with the last, so that no checkpoint may come between them."""
        return self._before is not None

    def gain(self, ratio: float) -> float:
        """Return how many steps of the reference batch one of `ratio` times as many samples is worth; 1 at first."""
        return 1.0 if self.scale is None else adascale_gain(self.scale, ratio * self._reference, self._reference)

    def begin(self, parts: Sequence[tuple[float, int]]) -> "Callable[[], None] | None":
        """Take note that a step begins, of parts of so many samples with their weights on this rank.

        Returns what is to be called when the first part's gradient is there, None if there is nothing to be seen.
        """
        self._due = self._steps % _EVERY == 0 or self.pending
        self._steps += 1
        if not self._due:
            return None
        weight, self._part = parts[0]
        if len(parts) > 1:
            return lambda: self._take_first(weight)
        if self._parallel is not None and self._parallel.data_ranks == self._parallel.plan.devices > 1:
            self._squares = []
            self._parallel.watch_local(self._squares)
        return None

    def end(self, batch: int | None) -> bool:
        """Measure the gradient of a whole batch of so many samples; return whether this step was measured.

        None: an uneven batch, of which nothing can be said.
        """
        squares, self._squares = self._squares, None
        if self._parallel is not None:
            self._parallel.watch_local(None)
        if not self._due:
            return False
        gradients = self._gradients.gradients
        if batch is None:
            self._before = None
        elif squares:
            self._note_parts(squares, gradients, batch)
        else:
            self._note_pair(gradients, batch)
        return True

    def forget_step(self) -> None:
        """Compare no step with the last one: an epoch has ended between them."""
        self._before = None

    def state_dict(self) -> dict[str, Any]:
        """Return the averages."""
        return {"steps": self._steps, "variance": self._variance, "square": self._square}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from these averages."""
        self._steps, self._variance, self._square = state["steps"], state["variance"], state["square"]
        self._before = None

    def _take_first(self, weight: float) -> None:
        self._squares = [gradient_norm(self._gradients.gradients, None).double().square() / weight**2]

    def _note_parts(self, squares: "list[torch.Tensor]", gradients: "list[torch.Tensor]", batch: int) -> None:
        """Note the mean square over the ranks' parts beside that of the whole batch."""
        import torch

        small = torch.stack([each.double() for each in squares]).sum()
        if self._parallel is not None and self._parallel.plan.devices > 1:
            torch.distributed.all_reduce(small)
            small /= self._parallel.plan.devices
        small_square = small.item() / self._gradients.loss_scale**2
        square = gradient_norm(gradients, None).item() ** 2
        # Equations A.2 and A.3.
        variance = (small_square - square) / (1 / self._part - 1 / batch)
        self._note(variance, square - variance / batch)

    def _note_pair(self, gradients: "list[torch.Tensor]", batch: int) -> None:
        """Keep a gradient, or compare it with the one that was kept: both are of one mean, nearly."""
        before, self._before = self._before, None
        if before is None or len(before) != len(gradients):
            self._before = [gradient.clone() for gradient in gradients]
            return
        apart, both = (
            gradient_norm([one.add(old, alpha=sign) for one, old in zip(gradients, before, strict=True)], None).item()
            for sign in (-1.0, 1.0)
        )
        # The difference of two has twice the variance of one, their mean half of it.
        variance = apart**2 / 2 * batch
        self._note(variance, both**2 / 4 - variance / (2 * batch))

    def _note(self, variance: float, square: float) -> None:
        # A step that overflowed says nothing.
        if math.isfinite(variance) and math.isfinite(square):
            self._variance = _DECAY * self._variance + (1 - _DECAY) * variance
            self._square = _DECAY * self._square + (1 - _DECAY) * square
