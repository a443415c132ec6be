"""A model of which this rank holds some pipeline stages: other parameters take no bytes, shared ones are lent."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.pipeline.cuts import OwnedModule
from trainwright.train.parallel.pipeline.partial_forward import AbsentTensor, PartialForward, TensorLike

__all__ = ["DividedModel", "StageModule"]


class StageModule(nn.Module):
    """A stage as a module: it holds the stage's own modules under their paths, and runs the model's forward."""

    def __init__(self, owned: Iterable[OwnedModule], run: Callable[[Sequence[torch.Tensor], int], Any]) -> None:
        super().__init__()
        self._run = run
        for each in owned:
            *above, last = each.path.split(".") if each.whole else (*filter(None, each.path.split(".")), "")
            parent: nn.Module = self
            for name in above:
                parent = parent._modules.setdefault(name, nn.Module())  # type: ignore[assignment]  # noqa: SLF001
            if each.whole:
                parent._modules[last] = each.module  # noqa: SLF001  names such as "type" too
            else:
                parent._parameters.update(each.module._parameters)  # noqa: SLF001

    def forward(self, *received: torch.Tensor, place: torch.Tensor | None = None) -> Any:
        """Return what goes to the next stage, or the loss, of the micro-batch at a place, by default the first."""
        return self._run(received, 0 if place is None else int(place))


class DividedModel:
    """A model with the parameters of these stages; what it lacks is absent, or lent by the rank that owns it.

    A lent parameter is a copy on the ranks whose stages read it: it gets the owner's values before each batch, and its
    gradient goes to the owner after it. So every parameter is trained, averaged and saved by one rank of a pipeline.
    """

    def __init__(
        self,
        model: nn.Module,
        owned: Sequence[OwnedModule],
        cuts: Sequence[str],
        *,
        ranks_of: Sequence[int],
        group: dist.ProcessGroup,
    ) -> None:
        rank = dist.get_rank(group)
        self._rank, self._group = rank, group
        self._holders: dict[str, list[tuple[nn.Module, str]]] = {}
        """Where each parameter is, by its first path."""
        self._owner: dict[str, int] = {}
        self._lacking: dict[str, list[str]] = {}
        """Paths of the parameters and buffers that a module of the model lacks."""
        self._loans: list[tuple[str, int]] = []
        """Path of a parameter and rank that it is lent to."""
        self._lent: dict[str, torch.Tensor] = {}
        borrowers = self._drop_foreign(owned, ranks_of)
        self.buffers = frozenset(
            id(buffer)
            for each in owned
            if each.whole
            for buffer in each.module.buffers()
            if ranks_of[each.stage] == rank
        )
        self._route_calls(model, owned, cuts)
        for path, rank_of_borrower in borrowers:
            self.lend([path], rank_of_borrower)

    @property
    def weights(self) -> frozenset[int]:
        """Identities of the tensors that count as parameters, though they are none."""
        return self.buffers | {id(each) for each in self._lent.values()}

    def _drop_foreign(self, owned: Sequence[OwnedModule], ranks_of: Sequence[int]) -> list[tuple[str, int]]:
        """Let absent tensors stand for those of other ranks; return which parameters stages of several ranks share."""
        first: dict[int, str] = {}
        borrowers: list[tuple[str, int]] = []
        for each in owned:
            rank = ranks_of[each.stage]
            for path, module in each.holders():
                for name, parameter in module._parameters.items():  # noqa: SLF001
                    if parameter is None:
                        continue
                    known = first.setdefault(id(parameter), f"{path}.{name}".lstrip("."))
                    self._holders.setdefault(known, []).append((module, name))
                    if self._owner.setdefault(known, rank) != rank and (known, rank) not in borrowers:
                        borrowers.append((known, rank))
        for each in owned:
            foreign = ranks_of[each.stage] != self._rank
            for path, module in each.holders():
                # Norms ask states for statistics even where they have none.
                if foreign and each.whole:
                    vars(module).update(_save_to_state_dict=_leave_state, _load_from_state_dict=_leave_state)
                for name, parameter in list(module._parameters.items()):  # noqa: SLF001
                    # What this rank's stages share with a stage that owns it is lent.
                    if parameter is not None and (foreign or self._owner[first[id(parameter)]] != self._rank):
                        self._put_absent(each, module, module._parameters, name, first[id(parameter)])  # noqa: SLF001
                for name, buffer in list(module._buffers.items()) if each.whole and foreign else ():  # noqa: SLF001
                    if buffer is not None:
                        self._put_absent(each, module, module._buffers, name, f"{path}.{name}")  # noqa: SLF001
        return borrowers

    def _put_absent(self, owned: OwnedModule, module: nn.Module, place: dict[str, Any], name: str, path: str) -> None:
        tensor = place.pop(name)
        vars(module)[name] = AbsentTensor(TensorLike.of(tensor), tensor.device, path=path)
        self._lacking.setdefault(owned.path, []).append(path)

    def _route_calls(self, model: nn.Module, owned: Sequence[OwnedModule], cuts: Sequence[str]) -> None:
        """Let the calls of modules that are called as they are, or begin a stage, go to the forward that runs.

        Calls, not forwards, so that hooks of modules that are elsewhere do not run here.
        """
        whole = {each.module: each.path for each in owned if each.whole}
        begins = {model.get_submodule(path): stage for stage, path in enumerate(cuts, 1)}
        for module in {**whole, **begins}:
            # torch's own place for what is called in a module's stead, such as compiled code; copies and files leave it
            # out.
            compiled = module._compiled_call_impl  # noqa: SLF001
            call = compiled or module._call_impl  # noqa: SLF001
            routed: Any = partial(self._call, module, call, begins.get(module, 0), whole.get(module))
            # Recomputation asks for it.
            routed.compiled = compiled is not None
            module._compiled_call_impl = routed  # noqa: SLF001

    def _call(
        self, module: nn.Module, call: Callable[..., Any], begins: int, path: str | None, *args: Any, **kwargs: Any
    ) -> Any:
        run = PartialForward.running
        if run is None:
            return call(*args, **kwargs)
        if begins:
            run.enter_stage(begins, path or type(module).__name__)
        if path is None:
            return call(*args, **kwargs)
        return run.call_module(path, call, self._lacking.get(path, ()), args, kwargs)

    def lend(self, paths: Iterable[str], rank: int) -> None:
        """Lend parameters to a rank, from the next batch on; all ranks of the pipeline call this alike."""
        for path in paths:
            if path not in self._owner:
                raise UnsupportedPlan.of("pipeline", f"stages of several ranks use the buffer {path}")
            self._loans.append((path, rank))
            if rank != self._rank:
                # The owner knows how it is placed.
                placed = (
                    getattr(self._parameter(path), "device_mesh", None) if self._rank == self._owner[path] else None
                )
                axes = {"tensor", "expert"}.intersection(() if placed is None else placed.mesh_dim_names or ())
                if axes:
                    raise UnsupportedPlan.of(
                        f"{min(axes)}+pipeline", f"stages of several ranks use {path}, which is divided"
                    )
                continue
            (module, name), *_ = self._holders[path]
            absent = vars(module)[name]
            tensor = torch.empty(absent.shape, dtype=absent.dtype, device=absent.device)
            self._lent[path] = tensor.requires_grad_(absent.requires_grad)
            for holder, name in self._holders[path]:
                vars(holder)[name] = tensor
            for lacking in self._lacking.values():
                lacking[:] = [each for each in lacking if each != path]

    def _parameter(self, path: str) -> torch.Tensor:
        (module, name), *_ = self._holders[path]
        return getattr(module, name)  # type: ignore[no-any-return]

    def send_values(self) -> None:
        """Give the owners' values to the ranks that they are lent to."""
        for path, rank in self._loans:
            owner = self._owner[path]
            if self._rank == owner:
                parameter = self._parameter(path).detach()
                whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
                dist.send(whole.contiguous(), group=self._group, group_dst=rank)
            elif self._rank == rank:
                dist.recv(self._lent[path].detach(), group=self._group, group_src=owner)

    def collect_gradients(self) -> None:
        """Add to the owners' gradients what other ranks found for their parameters."""
        for path, rank in self._loans:
            owner = self._owner[path]
            if self._rank == rank and self._lent[path].requires_grad:
                lent = self._lent[path]
                found = torch.zeros_like(lent) if lent.grad is None else lent.grad
                dist.send(found.detach().contiguous(), group=self._group, group_dst=owner)
                lent.grad = None
            elif self._rank == owner and self._parameter(path).requires_grad:
                parameter = self._parameter(path)
                found = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
                dist.recv(found, group=self._group, group_src=rank)
                part = _part_like(parameter, found)
                parameter.grad = part if parameter.grad is None else parameter.grad + part

    def lent_parameters(self) -> Iterable[torch.Tensor]:
        """Return the copies of other ranks' parameters."""
        return self._lent.values()


def _leave_state(*_: Any, **__: Any) -> None:
    """Save and load nothing."""


def _part_like(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as its parameter is placed: of sharded ones the mean over replicas, and this rank's part."""
    if not isinstance(parameter, DTensor):
        return gradient
    mesh = parameter.device_mesh
    for axis in range(mesh.ndim):
        dist.all_reduce(gradient, group=mesh.get_group(axis))
    whole = DTensor.from_local(gradient / mesh.size(), mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole.redistribute(placements=parameter.placements)
