"""Optimizers for large batches, LARS and LAMB, which scale each layer's step by its trust ratio; optimizers by name.

Both let a layer's step be in proportion to the norm of its weights (You et al., arXiv 1708.03888 and 1904.00962).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from trainwright.errors import TrialError
from trainwright.validators import check, one_of

__all__ = ["LAMB", "LARS", "make_optimizer"]


class _Layerwise(Optimizer, ABC):
    """An optimizer that updates each parameter tensor by itself."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; `closure` computes the loss anew, as torch has it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group, self.state[parameter])
        return loss

    @abstractmethod
    def _update(self, parameter: Any, group: dict[str, Any], state: dict[str, Any]) -> None:
        """Change a parameter by its gradient."""


class LARS(_Layerwise):
    """SGD with momentum and rates by layer: lr * trust |w| / (|g| + weight_decay |w|) (algorithm 1).

    A layer whose weights or gradient are zero has the plain rate, and so have the groups with `adapt=False`, as is
    usual for biases and norms.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        adapt: bool = True,
    ) -> None:
        settings = {"momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": adapt}
        super().__init__(params, {"lr": lr, **settings})

    def _update(self, parameter: Any, group: dict[str, Any], state: dict[str, Any]) -> None:
        gradient, decay = parameter.grad, group["weight_decay"]
        rate = group["lr"]
        if group["adapt"]:
            weight_norm, gradient_norm = parameter.norm(), gradient.norm()
            rate = rate * _trust_ratio(group["trust"] * weight_norm, gradient_norm + decay * weight_norm)
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        # The rate goes into the momentum: a change of it does not rescale earlier steps.
        state["momentum"].mul_(group["momentum"]).add_((gradient + decay * parameter) * rate)
        parameter.sub_(state["momentum"])


class LAMB(_Layerwise):
    """Adam whose steps, weight decay included, have the norm of the layer's weights times the rate (algorithm 2)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adapt: bool = True,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": adapt})

    def _update(self, parameter: Any, group: dict[str, Any], state: dict[str, Any]) -> None:
        first, second = group["betas"]
        if not state:
            state |= {"step": 0, "mean": torch.zeros_like(parameter), "square": torch.zeros_like(parameter)}
        state["step"] += 1
        state["mean"].lerp_(parameter.grad, 1 - first)
        state["square"].mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
        mean, square = (
            state[name] / (1 - beta ** state["step"]) for name, beta in (("mean", first), ("square", second))
        )
        update = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * parameter
        ratio = _trust_ratio(parameter.norm(), update.norm()) if group["adapt"] else 1.0
        parameter.sub_(group["lr"] * ratio * update)


def _trust_ratio(over: torch.Tensor, under: torch.Tensor) -> torch.Tensor:
    """Return the ratio of two norms, 1 where either is zero."""
    return torch.where((over > 0) & (under > 0), over / under, torch.ones_like(over))


def make_optimizer(name: str, params: Iterable[Any], **settings: Any) -> Optimizer:
    """Return the optimizer of a name, in any case: "lars", "lamb", or a class of `torch.optim` such as "adamw".

    Raises `TrialError` for other names.
    """
    kinds = {
        each.lower(): kind
        for each, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
    }
    kinds |= {"lars": LARS, "lamb": LAMB}
    check(name.lower(), one_of(*sorted(kinds)), "make_optimizer", TrialError)
    optimizer: Optimizer = kinds[name.lower()](params, **settings)
    return optimizer
