"""Gradient accumulation that a checkpoint can fall into: the partial sums and the phase are state."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainwright.errors import TrialError

if TYPE_CHECKING:
    import torch

__all__ = ["Accumulation"]


class Accumulation:
    """Counts micro-batches: each `every`-th ends a step. Keeps the gradients summed so far with the checkpoint.

    In the loop: `(loss / every).backward()`, then `if accumulation.full(): optimizer.step(); optimizer.zero_grad()`,
    then `manager.step()`. The gradients are those that `model` has; under DDP without `no_sync` they are equal on all
    ranks. Raises `TrialError` for an `every` that is no whole number >= 1.
    """

    def __init__(self, model: "torch.nn.Module", *, every: int) -> None:
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise TrialError(f"Accumulation: every must be a whole number >= 1, got {every!r}")
        self.every = every
        self.phase = 0
        """The micro-batches since the last step."""
        self._model = model

    def full(self) -> bool:
        """Count a micro-batch; return whether the optimizer is to step now."""
        self.phase = (self.phase + 1) % self.every
        return self.phase == 0

    def state_dict(self) -> dict[str, Any]:
        """Return the phase and the gradients that are there."""
        gradients = {name: each.grad for name, each in self._model.named_parameters() if each.grad is not None}
        return {"phase": self.phase, "every": self.every, "gradients": gradients if self.phase else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the same phase with the same sums; within one, `every` must be as saved, else `TrialError`."""
        if state["phase"] and state["every"] != self.every:
            raise TrialError(
                f"Accumulation: the checkpoint lies within a step of {state['every']} micro-batches, got "
                f"every={self.every}; restore it with every={state['every']}"
            )
        self.phase = state["phase"]
        for name, parameter in self._model.named_parameters():
            gradient = state["gradients"].get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
