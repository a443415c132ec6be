"""Keeps the hyperparameters of an optimizer for a clone, although it takes over another trial's state."""

from typing import Any

__all__ = ["read_options", "set_options"]

_OPTIONS = frozenset({"lr", "initial_lr", "weight_decay", "momentum", "betas", "eps", "alpha", "dampening"})
"""What optimizers call their hyperparameters; whatever else is in their groups may be learnt."""


def read_options(optimizer: Any) -> list[dict[str, Any]]:
    """Return the hyperparameters of each group of the optimizer."""
    return [{name: group[name] for name in _OPTIONS & group.keys()} for group in optimizer.param_groups]


def set_options(optimizer: Any, schedule: Any, options: list[dict[str, Any]]) -> None:
    """Go on with these, though another state was restored; rates stay where a schedule has brought them."""
    scheduled = [schedule, *getattr(schedule, "_schedulers", ())] if schedule is not None else []
    for place, (group, own) in enumerate(zip(optimizer.param_groups, options, strict=True)):
        # A plateau's schedule knows no first rate: it begins with that of the optimizer.
        ratio = own["initial_lr"] / group["initial_lr"] if group.get("initial_lr") else 0.0
        rate = group["lr"] * ratio if scheduled and ratio else own["lr"]
        group.update({**own, "lr": rate})
        for one in scheduled if ratio else ():
            one.base_lrs[place] *= ratio
