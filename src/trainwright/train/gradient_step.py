"""From backward pass to optimizer step: loss scaling (mixed precision), gradient norm over shards, gradient clipping.

Loss scaling is torch's `GradScaler` (Micikevicius et al., arXiv 1710.03740): losses are multiplied before the backward
pass, gradients divided before anything looks at them, and a step whose gradients overflowed is left out on all ranks.
"""

from collections.abc import Callable, Iterable
from math import prod
from typing import TYPE_CHECKING, Any

from trainwright.errors import TrialError
from trainwright.validators import check, instance_of, number, optional

if TYPE_CHECKING:
    import torch

    from trainwright.train.parallel.model import Parallel

__all__ = ["GradientStep", "gradient_norm", "is_divided"]


class GradientStep:
    """The gradients of an optimizer's parameters, made ready for its step.

    `scaler` is a `torch.amp.GradScaler`, `max_norm` the 2-norm to which the gradient of the whole model is clipped;
    either may be None. Raises `TrialError` for other values.
    """

    def __init__(
        self, optimizer: Any, *, device: str = "cpu", scaler: Any = None, max_norm: float | None = None
    ) -> None:
        import torch

        check(max_norm, optional(number(above=0)), "prepare: max_gradient_norm", TrialError)
        allowed = optional(instance_of(torch.amp.GradScaler, words="a torch.amp.GradScaler"))
        check(scaler, allowed, "prepare: scaler", TrialError)
        self.scaler: torch.amp.GradScaler | None = scaler if scaler is not None and scaler.is_enabled() else None
        self.norm: torch.Tensor | None = None
        """The norm of the last step's gradients before they were clipped; None while none was."""
        self._device = device
        self._optimizer = self._stepped = optimizer
        self._max_norm = max_norm

    @property
    def gradients(self) -> "list[torch.Tensor]":
        """The gradients that there are, each parameter's own."""
        parameters = [each for group in self._optimizer.param_groups for each in group["params"]]
        return [parameter.grad for parameter in parameters if parameter.grad is not None]

    def scaled_loss(self, loss_of: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Return the loss by which to go backward."""
        scaler = self.scaler
        if scaler is None:
            return loss_of
        import torch

        # Torch makes the factor when it scales for the first time, which of a pipeline only the last rank does.
        scaler.scale(torch.zeros((), device=self._device))
        return lambda model, batch: scaler.scale(loss_of(model, batch))

    @property
    def loss_scale(self) -> float:
        """The factor of losses and gradients in the step at hand."""
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    def unscale_gradients(self, parallel: "Parallel | None") -> None:
        """Divide gradients by the loss scale."""
        if self.scaler is not None:
            divided = is_divided(parallel)
            self._stepped = _LocalShards(self._optimizer) if divided else self._optimizer
            self.scaler.unscale_(self._stepped)
            if divided:
                self._share_overflow()

    def clip_gradients(self, parallel: "Parallel | None") -> None:
        """Bring the gradient of the whole model to the norm that it may have at most."""
        if self._max_norm is not None:
            gradients = self.gradients
            self.norm = gradient_norm(gradients, parallel, self._device)
            # As torch.nn.utils.clip_grad_norm_ does, to the bit.
            factor = (self._max_norm / (self.norm + 1e-6)).clamp(max=1.0)
            for gradient in map(_local, gradients):
                gradient.mul_(factor.to(gradient.device))

    def step(self) -> None:
        """Let the optimizer step, unless a scaled gradient has overflowed."""
        if self.scaler is None:
            self._optimizer.step()
        else:
            self.scaler.step(self._stepped)
            self.scaler.update()

    def _share_overflow(self) -> None:
        """Let all ranks know of an overflow in the shard of one: they step together, or not at all."""
        import torch.distributed as dist

        assert self.scaler is not None  # noqa: S101 -- the caller has looked
        # As torch's own ShardedGradScaler does; there is no public way.
        state = self.scaler._per_optimizer_states[id(self._stepped)]  # noqa: SLF001
        for found in state["found_inf_per_device"].values():
            dist.all_reduce(found, dist.ReduceOp.MAX)


class _LocalShards:
    """An optimizer as a scaler sees it: with this rank's plain shards: torch does not mix the two kinds."""

    def __init__(self, optimizer: Any) -> None:
        self.step = optimizer.step
        shards = []
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            # A view, which takes no memory of its own.
            shards.append(_local(parameter.detach()).detach())
            shards[-1].grad = None if parameter.grad is None else _local(parameter.grad)
        self.param_groups = [{"params": shards}]


def gradient_norm(
    gradients: "Iterable[torch.Tensor]", parallel: "Parallel | None", device: str = "cpu"
) -> "torch.Tensor":
    """Return the 2-norm of all gradients of a model, of which each rank may have shards or some layers only."""
    import torch
    import torch.distributed as dist

    gradients = list(gradients)
    if parallel is None or not is_divided(parallel):
        return torch.nn.utils.get_total_norm(gradients)
    layout = parallel.plan
    # Ranks that hold a parameter, or its shards: all those of its pipeline stage.
    holders = layout.devices // layout.degrees.pipeline
    squares: list[torch.Tensor] = []
    for gradient in gradients:
        placements = getattr(gradient, "placements", ())
        # A sum that is still spread over the ranks has no norm yet.
        if any(placement.is_partial() for placement in placements):
            from torch.distributed.tensor import Replicate

            whole = [Replicate() if placement.is_partial() else placement for placement in placements]
            gradient, placements = gradient.redistribute(placements=whole), whole  # type: ignore[attr-defined]  # a DTensor  # noqa: PLW2901
        shards = prod(
            gradient.device_mesh.size(axis)  # type: ignore[attr-defined]  # likewise
            for axis, placement in enumerate(placements)
            if not placement.is_replicate()
        )
        local = _local(gradient)
        square = local.to(torch.promote_types(local.dtype, torch.float32)).square().sum()
        # Every shard counts once, on however many ranks it is.
        squares.append(square * (shards / holders))
    # All ranks meet here, also those of a stage without parameters.
    total = (torch.stack(squares).sum() if squares else torch.zeros((), device=device)).double()
    dist.all_reduce(total)
    return total.sqrt()


def is_divided(parallel: "Parallel | None") -> bool:
    """Whether ranks hold different gradients."""
    if parallel is None or parallel.plan.devices == 1:
        return False
    degrees = parallel.plan.degrees
    return bool(parallel.plan.zero) or degrees.data * degrees.context * degrees.spatial < parallel.plan.devices


def _local(tensor: Any) -> Any:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
