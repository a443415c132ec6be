"""One training step of a copy of a model, on fake tensors or on real ones, in parts that a recorder can watch."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from trainwright.errors import ProfileError
from trainwright.model.trace.attention import assume_unpacked_rows
from trainwright.model.trace.storages import StorageTracker
from trainwright.validators import check, one_of

__all__ = ["Call", "Loss", "MakeOptimizer", "TrainingStep", "as_call", "call_model", "prepare_step"]

Loss = Callable[[nn.Module, Any], torch.Tensor]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

PRECISIONS: dict[str, torch.dtype | None] = {
    "fp32": None,
    "bf16": torch.bfloat16,
    "amp-bf16": torch.bfloat16,
    "amp-fp16": torch.float16,
}
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-4),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
}

_NAMED = one_of(*OPTIMIZERS)
_OPTIMIZER = replace(_NAMED, allowed=f"{_NAMED.allowed}, a function of the parameters, or None")


@dataclass
class TrainingStep:
    """A prepared model, sample and optimizer; `forward`, `backward` and `update` are the parts of a step.

    `result` is what the forward pass returned: the loss, or the outputs, each of which then gets gradients of one.
    """

    model: nn.Module
    sample: Any
    loss: Loss | None
    optimizer: torch.optim.Optimizer | None
    precision: str
    device: torch.device
    fake: FakeTensorMode | None
    result: Any = None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Parameters, tied ones once."""
        return list(self.model.parameters())

    @property
    def state(self) -> list[torch.Tensor]:
        """Tensors that the optimizer holds."""
        return self.state_of(*self.parameters)

    def state_of(self, *parameters: nn.Parameter) -> list[torch.Tensor]:
        """Return the tensors that the optimizer holds for some parameters."""
        known = self.optimizer.state if self.optimizer is not None else {}
        states = [known[parameter] for parameter in parameters if parameter in known]
        return [leaf for leaf in tree_leaves(states) if isinstance(leaf, torch.Tensor)]

    @property
    def trained(self) -> list[nn.Parameter]:
        """Parameters that get a gradient, known after the backward pass.

        A real step may have skipped parameters because of its values; these count as trained.
        """
        # A fake step takes every path that does not depend on values, so a missing gradient is a fact.
        known = self.fake is not None
        return [
            parameter
            for parameter in self.parameters
            if parameter.requires_grad and not (known and parameter.grad is None)
        ]

    @property
    def gradients(self) -> list[torch.Tensor]:
        """Gradients of parameters, where there are any."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    @contextlib.contextmanager
    def tensors(self) -> Iterator[None]:
        """Make all tensors inside fake, if the step is."""
        if self.fake is None:
            yield
            return
        # Positions that are given may number several sequences in a row.
        numbered = "position_ids" in as_call(self.sample).kwargs
        with self.fake, contextlib.nullcontext() if numbered else assume_unpacked_rows():
            yield

    def watched(self, tracker: StorageTracker) -> None:
        """Count what is alive before a step: parameters, buffers, the optimizer's state and the sample."""
        tracker.watch(self.parameters, "parameters")
        tracker.watch(list(self.model.buffers()), "buffers")
        tracker.watch(self.state, "optimizer")
        tracker.watch(self.sample, "sample")

    def forward(self) -> None:
        """Run the model, and the loss if there is one."""
        with self._autocast():
            self.result = (
                call_model(self.model, self.sample) if self.loss is None else self.loss(self.model, self.sample)
            )

    def backward(self) -> bool:
        """Run the backward pass; return whether anything wanted a gradient."""
        outputs = [leaf for leaf in tree_leaves(self.result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if not outputs:
            return False
        if self.loss is not None and (len(outputs) != 1 or outputs[0].numel() != 1):
            shapes = [tuple(output.shape) for output in outputs]
            raise ProfileError(f"loss: returned tensors of shapes {shapes}; allowed: one scalar tensor, the mean loss")
        # Without a loss every output gets a gradient of ones, made inside backward and not before.
        if self.loss is not None:
            outputs[0].backward()
        else:
            _Ones.apply(*outputs).backward()
        return True

    def update(self) -> None:
        """Run the optimizer's step."""
        if self.optimizer is not None:
            self.optimizer.step()

    def finish(self) -> None:
        """Drop the result and the gradients, as zero_grad does."""
        self.result = None
        for parameter in self.parameters:
            parameter.grad = None

    def fill_state(self) -> None:
        """Make the optimizer's state, as its first step does, by a step with gradients of zero."""
        for group in self.optimizer.param_groups if self.optimizer is not None else ():
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        self.update()
        self.finish()

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if not self.precision.startswith("amp-"):
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=PRECISIONS[self.precision])


@dataclass(frozen=True, slots=True)
class Call:
    """A sample as a model was called with it."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def as_call(sample: Any) -> Call:
    """Return a sample as a call: a mapping holds keyword arguments, a tuple or list positional ones, else it is one."""
    if isinstance(sample, Call):
        return sample
    if isinstance(sample, Mapping):
        return Call((), dict(sample))
    return Call(tuple(sample) if isinstance(sample, tuple | list) else (sample,), {})


def call_model(model: Callable[..., Any], sample: Any) -> Any:
    """Call a model with a sample."""
    given = as_call(sample)
    return model(*given.args, **given.kwargs)


def prepare_step(
    model: nn.Module,
    sample: Any,
    *,
    loss: Loss | None = None,
    optimizer: str | MakeOptimizer | None = None,
    precision: str = "fp32",
    device: torch.device | None = None,
    fake: bool = True,
) -> TrainingStep:
    """Copy a model and a sample to `device`, as fake tensors or as real ones; the original model is not changed.

    Tensors on the meta device become real ones with small random values.
    """
    check(precision, one_of(*PRECISIONS), "precision", ProfileError)
    if isinstance(optimizer, str):
        check(optimizer, _OPTIMIZER, "optimizer", ProfileError)
    device = device or torch.device("cpu")
    whole = None if precision.startswith("amp-") else PRECISIONS[precision]
    mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else None
    # Copied inside the mode, so that fake tensors never hold data.
    with mode if mode is not None else contextlib.nullcontext():
        copier = _Copier(device, whole, fake=fake)
        try:
            copied = copy.deepcopy(model, copier.memo(model))
        except (TypeError, RuntimeError) as error:
            raise ProfileError(
                f"model: it cannot be copied ({error}); keep handles and graphs out of its attributes"
            ) from error
        moved = tree_map(lambda leaf: copier.of(leaf) if isinstance(leaf, torch.Tensor) else leaf, sample)
        trainable = [parameter for parameter in copied.parameters() if parameter.requires_grad]
        make = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
        made_optimizer = make(trainable) if make is not None and trainable else None
    return TrainingStep(
        model=copied,
        sample=moved,
        loss=loss,
        optimizer=made_optimizer,
        precision=precision,
        device=device,
        fake=mode,
    )


class _Ones(torch.autograd.Function):
    """A scalar whose backward gives each output a gradient of ones, made only when backward needs it."""

    @staticmethod
    def forward(ctx: Any, *outputs: torch.Tensor) -> torch.Tensor:
        ctx.outputs = [(output.shape, output.dtype) for output in outputs]
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        device = gradients[0].device
        return tuple(torch.ones(shape, dtype=dtype, device=device) for shape, dtype in ctx.outputs)


class _Copier:
    """Copies tensors; tensors that share a storage share the copy."""

    def __init__(self, device: torch.device, dtype: torch.dtype | None, *, fake: bool) -> None:
        self.device, self.dtype, self.fake = device, dtype, fake
        self.storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self.alive: list[Any] = []  # a storage keeps its identity as long as it lives

    def memo(self, model: nn.Module) -> dict[int, Any]:
        """Return copies of all tensors that the modules of a model hold, by identity."""
        found: dict[int, Any] = {}
        for module in model.modules():
            for leaf in tree_leaves([module._parameters, module._buffers, dict(module.__dict__)]):  # noqa: SLF001
                if isinstance(leaf, torch.Tensor) and id(leaf) not in found:
                    found[id(leaf)] = self.of(leaf)
        return found

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor."""
        with torch.no_grad():
            copied = self._copy_strided(tensor) if tensor.layout == torch.strided else tensor.detach().clone()
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(copied, requires_grad=tensor.requires_grad)
        return copied.requires_grad_(tensor.requires_grad)

    def _copy_strided(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self.dtype if self.dtype is not None and tensor.is_floating_point() else tensor.dtype
        storage = tensor.untyped_storage()
        # Keyed by storage, so that views and tied weights share one copy too.
        key = (storage._cdata, dtype)  # noqa: SLF001  the only identity of a storage
        if key not in self.storages:
            self.alive.append(storage)
            length = storage.nbytes() // tensor.dtype.itemsize
            flat = torch.empty(length, dtype=dtype, device=self.device)
            if not self.fake:
                _fill_values(flat, tensor, length)
            self.storages[key] = flat
        return self.storages[key].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _fill_values(flat: torch.Tensor, tensor: torch.Tensor, length: int) -> None:
    if not tensor.is_meta:
        flat.copy_(tensor.as_strided((length,), (1,), 0))
    elif flat.is_floating_point():
        flat.normal_(0, 0.02)
    else:
        flat.zero_()
