"""Expert parallelism: each rank holds some experts of every block; tokens travel to these and back by all-to-all.

Source: Lepikhin et al., "GShard" (arXiv 2006.16668), section 3. Expert ranks are data ranks too: each has samples of
its own, and all but the experts whole. Experts are those of transformers: a module of stacked weights, [experts, ...],
that is called with tokens [N, width], the experts that each token visits and their weights, both [N, visits].

Tensor ranks have the same tokens. They hold whole experts too (Liu et al., "MoE Parallel Folding", arXiv 2504.14960):
each takes the visits to its own, and what they add to a token is summed.
"""

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.blocks import divided, marked
from trainwright.train.parallel.collectives import all_reduce, all_to_all, all_to_all_counts, copy, divide_gradient
from trainwright.train.parallel.recompute.run_context import has_hooks
from trainwright.train.parallel.recompute.trees import local_tensor

__all__ = ["are_experts", "divide_experts"]

_GIVEN = 4
"""The arguments of a forward pass, with the module itself."""


def divide_experts(model: nn.Module, mesh: DeviceMesh) -> list[nn.Parameter]:
    """Divide the experts of a model over a mesh of the axes "expert" and "tensor", and return their parameters.

    Their gradients are those of the mean over the expert ranks' losses already. Raises `UnsupportedPlan` for a model
    without experts in stacked weights, or with as many as cannot be divided.
    """
    found = {path: module for path, module in model.named_modules() if are_experts(module)}
    if not found:
        raise UnsupportedPlan.of(
            "expert",
            f"{type(model).__name__} has no experts that are called as transformers calls them: a module of "
            "`num_experts`, with weights [experts, ...], called with tokens, experts and weights",
        )
    parameters: list[nn.Parameter] = []
    for path, module in found.items():
        count, ranks = int(module.num_experts), mesh.size()
        if count % ranks:
            raise UnsupportedPlan.of("expert", f"the {count} experts of {path} cannot be divided by {ranks}")
        if has_hooks(module) or "forward" in vars(module) or any(map(marked, module.parameters())):
            raise UnsupportedPlan.of(
                "expert", f"{path} has hooks or a forward pass of its own, which would see some of the experts only"
            )
        for name, parameter in list(module.named_parameters()):
            part = divided(parameter, mesh, Shard(0), "expert", "tensor")
            setattr(module, name, part)
            parameters.append(part)
        vars(module)["forward"] = _Experts(module, mesh)
    return parameters


def are_experts(module: nn.Module) -> bool:
    """Whether a module is experts in stacked weights, called as transformers calls them."""
    count, own = getattr(module, "num_experts", None), list(module.parameters(recurse=False))
    return (
        isinstance(count, int)
        and any(each.ndim == 3 for each in own)
        and len(own) == len(list(module.parameters()))
        and all(each.shape[0] == count for each in own)
        and len(inspect.signature(type(module).forward).parameters) == _GIVEN
    )


class _Experts:
    """The forward pass of experts, of which this rank has some."""

    def __init__(self, module: nn.Module, mesh: DeviceMesh) -> None:
        self._module = module
        # FSDP makes a class of its own of it.
        self._class = type(module)
        groups = {axis: mesh.get_group(axis) for axis in mesh.mesh_dim_names or ()}
        self._group, self._tensor = groups.get("expert"), groups.get("tensor")
        self._copies = 1 if self._tensor is None else dist.get_world_size(self._tensor)
        self._ranks = mesh.size() // self._copies

    def __call__(self, tokens: torch.Tensor, visited: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        experts = visited.reshape(-1)
        if self._tensor is not None:
            tokens, weights = copy(tokens, self._tensor), copy(weights, self._tensor)
        rows = tokens.reshape(-1, tokens.shape[-1])
        counts = torch.zeros(int(self._module.num_experts), dtype=torch.int64, device=tokens.device)  # type: ignore[arg-type]
        counts.index_add_(0, experts, torch.ones_like(experts, dtype=torch.int64))
        # Sorted by expert, so by the rank that has it.
        order = experts.argsort(stable=True)
        counts = counts.view(self._ranks, self._copies, -1)
        if self._tensor is not None:
            # The visits to the experts on this tensor rank, and its like on other expert ranks.
            place = dist.get_rank(self._tensor)
            order = order[experts[order] // counts.shape[-1] % self._copies == place]
            counts = counts[:, place]
        counts = counts.reshape(self._ranks, -1).contiguous()
        whose = order // visited.shape[-1]
        back = self._visit(rows[whose], counts, weights.dtype)
        back = back * weights.reshape(-1)[order, None]
        found = torch.zeros_like(rows).index_add(0, whose, back.to(rows.dtype))
        if self._tensor is not None:
            found = all_reduce(found, self._tensor)
        # FSDP warns of views.
        return found if tokens.ndim == rows.ndim else found.view_as(tokens)

    def _visit(self, rows: torch.Tensor, counts: torch.Tensor, weight_dtype: torch.dtype) -> torch.Tensor:
        """Return what experts make of rows, which are sorted by expert; `counts` [ranks, experts of each]."""
        own = torch.arange(counts.shape[1], device=rows.device)
        if self._group is None:
            return self._compute(rows, own.repeat_interleave(counts.flatten()), weight_dtype)
        arriving = all_to_all_counts(counts, self._group)
        sent, received = counts.sum(1).tolist(), arriving.sum(1).tolist()
        there = all_to_all(rows, self._group, sent=sent, received=received)
        # What comes from one rank is sorted by expert too.
        experts = own.repeat(self._ranks).repeat_interleave(arriving.flatten())
        return all_to_all(self._compute(there, experts, weight_dtype), self._group, sent=received, received=sent)

    def _compute(self, rows: torch.Tensor, experts: torch.Tensor, weight_dtype: torch.dtype) -> torch.Tensor:
        """Return what this rank's experts make of rows, each of one expert."""
        module = self._module
        parts = {
            name: divide_gradient(local_tensor(each), self._ranks)
            for name, each in module.named_parameters(recurse=False)
        }
        # Other ranks wait for what goes back in the backward pass, also where no token came.
        if not len(rows):
            return _NoRows.apply(rows, *parts.values())  # type: ignore[no-any-return]
        own = self._class.__new__(self._class)
        vars(own).update({**vars(module), **parts, "_parameters": {}, "num_experts": len(next(iter(parts.values())))})
        weights = torch.ones(len(rows), 1, dtype=weight_dtype, device=rows.device)
        return self._class.forward(own, rows, experts[:, None], weights)  # type: ignore[no-any-return]


class _NoRows(Function):
    """What experts make of no rows; all that they read has a gradient of zeros."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, *weights)
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> Any:
        return tuple(map(torch.zeros_like, ctx.saved_tensors))
