"""A model that plans its recomputation by a memory budget: at its first batch, and again for a larger one."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from trainwright.model.trace.step import Call
from trainwright.plan.memory.plan_record import Plan
from trainwright.train.parallel.recompute.fitting import apply, fit
from trainwright.train.parallel.recompute.trees import granule_of, tensors_of, total_bytes

__all__ = ["Budgeted"]

Loss = Callable[[nn.Module], torch.Tensor]
"""Of the model, with its batch at hand."""
_Value = TypeVar("_Value")


class Budgeted:
    """`module` trains as `model` does, and shares everything with it, within a budget.

    The budget is one of `fit`, or a plan, which is then for batches of its sample's size at most. State of `optimizer`
    and `reserve_bytes` are part of it: what the device has beside the model. `on_plan` is called with every new plan. A
    batch of more bytes, or gradients that begin to add up, are planned anew. Ranks that exchange tensors within the
    forward pass plan `together`: by what the first of them measures.
    """

    def __init__(
        self,
        model: nn.Module,
        budget: str | float | Plan,
        *,
        optimizer: Optimizer | None = None,
        reserve_bytes: int = 0,
        together: bool = False,
        on_plan: Callable[[Any], None] = lambda _: None,
    ) -> None:
        self.plan: Plan | None = None
        # Copies of the model's own class, with its children and hooks, whatever a strategy makes of the model.
        self._whole, self._model, self.module = model, copy.copy(model), copy.copy(model)
        self.module.forward = self._forward
        self._budget, self._optimizer, self._reserve_bytes = budget, optimizer, reserve_bytes
        self._together, self._on_plan = together, on_plan
        self._loss: Loss | None = None
        self._accumulate = False
        self._planned: nn.Module | None = None
        self._input_bytes, self._adds_up = -1, False

    def expect(self, loss: Loss | None, *, accumulate: bool) -> None:
        """Set the loss of the forward pass that comes, which is then planned for, and whether gradients add up."""
        self._loss, self._accumulate = loss, accumulate

    def planning(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a forward pass that plans first, if need be: outside of the hooks that belong to the pass."""

        def planned(*args: Any, **kwargs: Any) -> Any:
            # Both are shallow copies, whose flags do not follow those of the model.
            self.module.training = self._model.training = self._whole.training
            if self._whole.training and torch.is_grad_enabled():
                self._plan_for(args, kwargs)
            return call(*args, **kwargs)

        return planned

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.module.training and torch.is_grad_enabled():
            assert self._planned is not None  # noqa: S101  `planning` has seen to it
            return self._planned.forward(*args, **kwargs)
        return type(self._model).forward(self.module, *args, **kwargs)

    def _plan_for(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Make the module that trains a batch within the budget, unless the last one does."""
        if isinstance(self._budget, Plan):
            if self._planned is None:
                self._keep_module(apply(self._model, self._budget))
            return
        size = total_bytes(tensors_of((args, kwargs)), granule_of(self._model))
        # A plan for a larger batch, or for gradients that add up, keeps the budget for less as well.
        if self._planned is not None and size <= self._input_bytes and (self._adds_up or not self._accumulate):
            return
        sample = Call(tuple(args), kwargs)
        settings: dict[str, Any] = {
            "budget": self._budget,
            "loss": None if self._loss is None else self._loss_of_output(self._loss),
            "optimizer": self._optimizer,
            "accumulate": self._accumulate,
            "reserve_bytes": self._reserve_bytes,
        }
        module = fit(self._model, sample, agree=self._agree, sharded=self._whole, **settings)
        self._input_bytes, self._adds_up = size, self._accumulate
        self._keep_module(module)

    def _agree(self, value: _Value) -> _Value:
        """Return the first rank's value where ranks plan together: other plans would exchange in another order."""
        values = [value]
        if self._together:
            dist.broadcast_object_list(values, 0)
        return values[0]

    def _keep_module(self, module: nn.Module) -> None:
        plan: Any = module.plan
        self._planned, self.plan = module, plan
        self._on_plan(plan)

    def _loss_of_output(self, loss: Loss) -> Callable[[Any], torch.Tensor]:
        """Return the loss as a function of what the model returns, for a loss that calls it once."""

        def loss_of_module(output: Any) -> torch.Tensor:
            answers = copy.copy(self._model)
            # The model has been called already, with this output.
            answers.forward = lambda *_, **__: output
            return loss(answers)

        return loss_of_module
