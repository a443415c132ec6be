"""The forward of a module that trains by a memory plan: a copy of it, or one from a file, has a forward of its own."""

import copy
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from trainwright.errors import BudgetExceeded, UnsupportedModel
from trainwright.plan.byte_sizes import format_bytes
from trainwright.train.parallel.recompute.interpreter import PlanInterpreter
from trainwright.train.parallel.recompute.program import NOTHING_REMADE, Act, RemadeOperations
from trainwright.train.parallel.recompute.stage_calls import check_trains, stage_sites
from trainwright.train.parallel.recompute.trees import granule_of, tensors_of, total_bytes

__all__ = ["PlannedForward", "carry_out"]

Train = Callable[..., Any]
"""Of a module and the arguments of its forward."""


class PlannedForward:
    """Trains as it is told; in evaluation mode, or without gradients, it is the forward of the module's class.

    `make` returns how to train a copy of the module; None: as its class does. A batch of more than
    `most_bytes` is refused with `BudgetExceeded` in training.
    """

    planned = True

    def __init__(
        self,
        module: nn.Module,
        make: Callable[[], Train] | None,
        *,
        train: Train | None = None,
        most_bytes: int | None = None,
    ) -> None:
        self._module = weakref.ref(module)
        self._make, self._train, self._most_bytes = make, train, most_bytes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module."""
        module = self._module()
        if module is None:
            raise UnsupportedModel(
                "model: got a shallow copy of a fitted module that is no more; allowed: that module, or copy.deepcopy"
            )
        if not (module.training and torch.is_grad_enabled()):
            return type(module).forward(module, *args, **kwargs)
        if torch._C._are_functorch_transforms_active():  # noqa: SLF001  there is no public question
            raise UnsupportedModel(
                "model: got a call inside a transform of torch.func (grad, vmap); allowed: torch.autograd; take the "
                "model that was fitted there"
            )
        if self._most_bytes is not None:
            size = total_bytes(tensors_of((args, kwargs)), granule_of(module))
            if size > self._most_bytes:
                raise BudgetExceeded(
                    f"batch: got {format_bytes(size)}, the plan is for at most {format_bytes(self._most_bytes)}; "
                    "allowed: batches no larger than the sample; fit or plan again with a larger one"
                )
        if self._make is None:
            return type(module).forward(module, *args, **kwargs)
        self._train = self._train or self._make()
        return self._train(module, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PlannedForward":
        # A copy is known to `memo` before its attributes are copied: its forward is to train the copy.
        twin = memo.get(id(self._module()))
        return self if twin is None else PlannedForward(twin, self._make, most_bytes=self._most_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        # What trains is left out: whoever loads the module makes it anew, from the stages of the loaded one.
        return object.__new__, (PlannedForward,), (self._module(), self._make, self._most_bytes)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        module, self._make, self._most_bytes = state
        self._module, self._train = weakref.ref(module), None


def carry_out(
    model: nn.Module,
    names: Sequence[str],
    acts: Sequence[Act] | None,
    *,
    remade: RemadeOperations = NOTHING_REMADE,
    most_bytes: int | None = None,
) -> nn.Module:
    """Return a module that trains as `acts` (see `program.place_acts`) of these stages say; it shares all with `model`.

    Same class, state_dict keys and order of parameters. In evaluation mode, or without gradients, it runs as the model
    itself. Gradients, outputs, buffers and the state of random generators after a step are those of the model, bit by
    bit. `remade` are the operations that a stage does again, by stage and option. Without acts it runs as the model
    itself always. Batches of more than `most_bytes` are refused. Raises `ChainError` if a forward or backward of a
    stage is missing, `PlanMismatch` for a stage that the model has not.
    """
    check_trains(model)
    # A shallow copy has the same parameters, buffers and children.
    planned = copy.copy(model)
    make = None
    if acts is not None:
        stage_sites(model, names)
        make = partial(_planned, tuple(names), tuple(acts), remade)
    planned.forward = PlannedForward(planned, make, train=make and make(), most_bytes=most_bytes)
    return planned


def _planned(names: Sequence[str], acts: Sequence[Act], remade: RemadeOperations) -> Train:
    program = PlanInterpreter(names, acts, remade)

    def train(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return program.run(module, args, kwargs)

    # torch.compile leaves the interpreter, and its hooks, alone.
    return torch.compiler.disable(train)  # type: ignore[no-any-return]  # torch does not type it
