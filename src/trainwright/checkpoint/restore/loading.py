"""Loads saved state into model, optimizer and other live objects: first compares everything, then loads in place."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainwright.checkpoint.manifest import TensorRecord
from trainwright.checkpoint.state.captured import canonical_names, parameter_names
from trainwright.checkpoint.state.differences import Difference, Effect
from trainwright.checkpoint.state.tree import decode_tree

if TYPE_CHECKING:
    import torch

__all__ = ["compare_state", "load_state"]


def compare_state(
    state: Mapping[str, Any], tree: Mapping[str, Any], tensors: Mapping[str, TensorRecord], *, whole: bool = True
) -> list[Difference]:
    """Return what of the saved `tree` would not fit the items of `state`, and what of them was not saved.

    `tensors` has the saved tensors by every name, ties too. With `whole`, an item that was saved and is not given
    counts too.
    """
    import torch

    found = [_missing_item(item, saved=None, now="given") for item in state if item not in tree]
    found += [_missing_item(item, saved="saved", now=None) for item in tree if whole and item not in state]
    for item, value in state.items():
        if item not in tree:
            continue
        if isinstance(value, torch.nn.Module):
            found += _compare_module(item, value, tree[item], tensors)
        elif isinstance(value, torch.optim.Optimizer):
            before = [name for group in tree[item]["param_groups"] for name in group["params"]]
            # Optimizers are compared by the names of their parameters, not by positions.
            names = parameter_names(state)
            after = {name for group in _current_groups(value, names) for name in group}
            found += [_missing_item(f"{item}: {name}", saved="saved", now=None) for name in before if name not in after]
            found += [_missing_item(f"{item}: {name}", saved=None, now="given") for name in sorted(after - set(before))]
        elif isinstance(value, torch.Tensor):
            found += _compare_tensor(item, value, tensors)
        elif hasattr(value, "state_differences"):
            # Such as a loader, of other data.
            found += value.state_differences(decode_tree(tree[item], {}))
    return found


def load_state(
    state: Mapping[str, Any], tree: Mapping[str, Any], tensors: "Mapping[str, torch.Tensor]"
) -> dict[str, Any]:
    """Load every item that both sides have; return the values of those that are plain and cannot change in place."""
    import torch

    values = {}
    # Before anything is loaded: a load may replace parameters.
    names = parameter_names(state)
    for item, target in state.items():
        if item not in tree:
            continue
        value = decode_tree(tree[item], tensors)
        if isinstance(target, torch.nn.Module):
            _load_module(target, value)
        elif isinstance(target, torch.optim.Optimizer):
            _load_optimizer(target, value, _current_groups(target, names))
        elif isinstance(target, torch.Generator):
            target.set_state(value.cpu())
        elif hasattr(target, "load_state_dict"):
            target.load_state_dict(value)
        elif isinstance(target, torch.Tensor):
            with torch.no_grad():
                target.copy_(value)
        # Containers of the caller are changed in place: other objects may hold a reference to them.
        elif isinstance(target, dict):
            target.clear()
            target.update(value)
        elif isinstance(target, list):
            target[:] = value
        else:
            values[item] = value
    return values


def _missing_item(item: str, *, saved: Any, now: Any) -> Difference:
    return Difference(item=item, saved=saved, now=now, effect=Effect.STATE)


def _compare_module(
    item: str, module: "torch.nn.Module", tree: Mapping[str, Any], tensors: Mapping[str, TensorRecord]
) -> Iterator[Difference]:
    import torch

    current = module.state_dict()
    names = {name: key for key, name in canonical_names(current).items()}
    for name in tree:
        if name not in names:
            yield _missing_item(f"{item}.{name}", saved="saved", now=None)
    for name, key in names.items():
        if name not in tree:
            yield _missing_item(f"{item}.{name}", saved=None, now="given")
        elif isinstance(current[key], torch.Tensor):
            yield from _compare_tensor(f"{item}.{name}", current[key], tensors)


def _compare_tensor(name: str, tensor: "torch.Tensor", tensors: Mapping[str, TensorRecord]) -> Iterator[Difference]:
    record = tensors.get(name)
    now = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
    saved = None if record is None else {"dtype": record.dtype, "shape": list(record.shape)}
    if saved != now:
        yield _missing_item(name, saved=saved, now=now)


def _load_module(module: "torch.nn.Module", value: Mapping[str, Any]) -> None:
    current = module.state_dict()
    # In best-effort mode what does not fit was reported before; only what fits is loaded.
    fitting = {
        key: value[name]
        for key, name in canonical_names(current).items()
        if name in value and getattr(value[name], "shape", None) == getattr(current[key], "shape", None)
    }
    module.load_state_dict(fitting, strict=len(fitting) == len(current))


def _current_groups(optimizer: "torch.optim.Optimizer", names: Mapping[int, str]) -> list[list[str]]:
    """Return the names of the parameters of each group, named as `capture_state` names them."""
    place = 0
    groups = []
    for group in optimizer.param_groups:
        groups.append([names.get(id(parameter), f"{place + at}") for at, parameter in enumerate(group["params"])])
        place += len(group["params"])
    return groups


def _load_optimizer(optimizer: "torch.optim.Optimizer", value: dict[str, Any], groups: list[list[str]]) -> None:
    """Load a state that is keyed by names: each group takes the settings of the saved group of its first parameter."""
    # Back from names to positions, in the order of the groups that the optimizer has now.
    position_of = {name: place for place, name in enumerate(name for group in groups for name in group)}
    saved_group = {name: group for group in value["param_groups"] for name in group["params"]}
    current = optimizer.state_dict()["param_groups"]
    param_groups = [
        {
            **next((saved_group[name] for name in names if name in saved_group), now),
            "params": [position_of[n] for n in names],
        }
        for names, now in zip(groups, current, strict=True)
    ]
    state = {position_of[name]: held for name, held in value["state"].items() if name in position_of}
    optimizer.load_state_dict({**value, "state": state, "param_groups": param_groups})
