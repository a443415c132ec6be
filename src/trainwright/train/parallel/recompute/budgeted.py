"""A model that plans its own steps: when it meets its first batch, and again for a larger one."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trainwright.plan.memory.plan_record import Plan
from trainwright.train.parallel.recompute.fitting import apply, fit
from trainwright.train.parallel.recompute.sample_step import Call
from trainwright.train.parallel.recompute.storage_bytes import granule_of, total_bytes
from trainwright.train.parallel.recompute.trees import tensors_of

__all__ = ["Budgeted"]

Loss = Callable[[nn.Module], torch.Tensor]
"""Of the model, with its batch at hand."""


class Budgeted:
    """`module` trains as `model` does, and shares everything with it, within a budget.

    The budget is one of `fit`, or a plan, which is then for batches of its sample's size at most. State of `optimizer`
    and `reserve_bytes` are part of it. The caller may set `loss` and `accumulate` before a forward pass; `on_plan` is
    called with every new plan. A batch of more bytes, or gradients that begin to add up, are planned anew.
    """

    def __init__(
        self,
        model: nn.Module,
        budget: str | float | Plan,
        *,
        optimizer: Optimizer | None = None,
        reserve_bytes: int = 0,
        on_plan: Callable[[Plan], None] = lambda _: None,
    ) -> None:
        self.plan: Plan | None = None
        self.loss: Loss | None = None
        self.accumulate = False
        self._model, self._budget = model, budget
        self._optimizer, self._reserve_bytes = optimizer, reserve_bytes
        self._on_plan = on_plan
        self._planned: nn.Module | None = None
        self._input_bytes, self._adds_up = -1, False
        self.module = copy.copy(model)  # the same parameters, buffers and children
        self.module.forward = self._forward

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.module.training and torch.is_grad_enabled():
            return self._module_for(args, kwargs).forward(*args, **kwargs)
        return type(self._model).forward(self.module, *args, **kwargs)

    def _module_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
        """Return the module of the plan for a batch, made now if need be."""
        if isinstance(self._budget, Plan):
            return self._planned or self._keep_module(apply(self._model, self._budget))
        size = total_bytes(tensors_of((args, kwargs)), granule_of(self._model))
        if self._planned is None or size > self._input_bytes or (self.accumulate and not self._adds_up):
            sample = Call(args, kwargs)
            loss = None if self.loss is None else self._loss_of_output(self.loss)
            module = fit(
                self._model, sample, budget=self._budget, loss=loss, optimizer=self._optimizer,
                accumulate=self.accumulate, reserve_bytes=self._reserve_bytes,
            )  # fmt: skip
            self._input_bytes, self._adds_up = size, self.accumulate
            return self._keep_module(module)
        return self._planned

    def _keep_module(self, module: nn.Module) -> nn.Module:
        plan: Any = module.plan
        self._planned, self.plan = module, plan
        self._on_plan(plan)
        return module

    def _loss_of_output(self, loss: Loss) -> Callable[[Any], torch.Tensor]:
        """Return the loss as a function of what the model returns, for a loss that calls it once."""

        def loss_of_module(output: Any) -> torch.Tensor:
            answers = copy.copy(self._model)
            answers.forward = lambda *_, **__: output  # it has been called already
            return loss(answers)

        return loss_of_module
