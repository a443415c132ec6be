"""Counts the bytes of an optimizer's state, also before its first step."""

import torch
from torch.optim import Optimizer

from trainwright.errors import BudgetError

__all__ = ["state_bytes"]

_ROWS, _COLUMNS = 2, 3


def state_bytes(optimizer: Optimizer, *, granule: int = 1) -> int:
    """Return the bytes of an optimizer's state once it has stepped; storages are rounded up to `granule`.

    Per-parameter state of fewer elements than the parameter (a count of steps) is left out. Raises `BudgetError` for an
    optimizer that cannot be made anew from its own settings, if it has not stepped yet.
    """
    if optimizer.state:
        tensors = [each for held in optimizer.state.values() for each in held.values()]
        state = [each for each in tensors if isinstance(each, torch.Tensor)]
        return sum(-(-each.untyped_storage().nbytes() // granule) * granule for each in state if each.dim())
    return sum(_of_group(optimizer, group, granule) for group in optimizer.param_groups)


def _of_group(optimizer: Optimizer, group: dict[str, object], granule: int) -> int:
    parameters: list[torch.Tensor] = group["params"]  # type: ignore[assignment]  # torch's groups hold it so
    total = 0
    for dtype in {each.dtype for each in parameters}:
        kept = _bytes_per_element(optimizer, group, dtype)
        own = [each for each in parameters if each.dtype is dtype and each.requires_grad]
        total += sum(-(-int(share * each.numel()) // granule) * granule for each in own for share in kept)
    return total


def _bytes_per_element(optimizer: Optimizer, group: dict[str, object], dtype: torch.dtype) -> list[float]:
    """Return the bytes per element of each tensor that the state of one parameter has."""
    # Let an optimizer of the same class and settings step once on a small tensor, and see what it keeps.
    probe = torch.nn.Parameter(torch.ones(_ROWS, _COLUMNS, dtype=dtype))
    probe.grad = torch.ones_like(probe)
    settings = {name: value for name, value in group.items() if name not in {"params", "fused", "capturable"}}
    try:
        made = type(optimizer)([settings | {"params": [probe]}])  # type: ignore[call-arg]  # of any class
        made.step()
    except Exception as error:
        raise BudgetError(
            f"optimizer: got a {type(optimizer).__name__} whose state is not known before it steps ({error}); allowed: "
            "one that can be made from its parameters; let it step once, or plan without it"
        ) from error
    state = [each for each in made.state[probe].values() if isinstance(each, torch.Tensor)]
    return [each.untyped_storage().nbytes() / probe.numel() for each in state if each.dim()]
