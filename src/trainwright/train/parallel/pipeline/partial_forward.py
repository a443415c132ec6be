"""One stage's part of a model's own forward: nothing is traced, the forward runs as it is written, on every rank.

A rank has the parameters of its own stages. Where the forward calls a module of another stage, or computes with what
such a module made, it gets tensors without bytes, of the shapes that were seen when all stages ran one after the other.
What depends on no parameter (masks, positions, rotary angles) every rank computes by itself. The forward ends at the
first module of the next stage, and hands on what the later stages read, whatever it is called and however far it skips.

Between modules torch's function mode sees each operation; modules of the stage itself run without it.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily
from torch.utils.weak import WeakTensorKeyDictionary

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.recompute.trees import leaves_of, map_only, tensors_of

__all__ = ["AbsentTensor", "Event", "ParameterNeededError", "PartialForward", "TensorLike", "without_objects"]

_METADATA = frozenset(
    {
        *("size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size", "get_device"),
        *("is_floating_point", "is_complex", "is_signed", "is_contiguous", "is_inference", "__len__", "__set__"),
    }
)
_TENSOR_PROPERTIES = frozenset({"T", "mT", "H", "mH", "data", "real", "imag", "grad"})


@dataclass(frozen=True)
class TensorLike:
    """What another rank is to know of a tensor before it comes."""

    shape: torch.Size
    dtype: torch.dtype
    trained: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorLike":
        """Describe a tensor."""
        return cls(tensor.shape, tensor.dtype, tensor.requires_grad)

    def as_tensor(self, device: torch.device | str) -> torch.Tensor:
        """Return a tensor with arbitrary values."""
        return torch.empty(self.shape, dtype=self.dtype, device=device, requires_grad=self.trained)


class _Slot:
    """Stands for a tensor in what an event returned; no dataclass, which trees look into."""

    def __init__(self, number: int, like: TensorLike) -> None:
        self.number, self.like = number, like


@dataclass(frozen=True)
class Event:
    """A module or an operation whose result depends on parameters, where the forward calls it."""

    name: str
    stage: int
    result: Any
    """What it returned, with a slot for each tensor; other objects than numbers, sizes and texts are left out."""

    @property
    def slots(self) -> list[_Slot]:
        """The slots of the result."""
        return [leaf for leaf in leaves_of(self.result) if isinstance(leaf, _Slot)]


class AbsentTensor(torch.Tensor):
    """A tensor of another stage, without bytes: number `number` of a forward, or the parameter at `path`."""

    number: int
    path: str

    def __new__(cls, like: TensorLike, device: torch.device, *, number: int = -1, path: str = "") -> Self:
        """Make one."""
        made = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001  torch's name for subclass authors
            cls, like.shape, dtype=like.dtype, device=device, requires_grad=like.trained
        )
        made.number, made.path = number, path
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        """Say which."""
        return f"AbsentTensor({self.path or self.number})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer questions about shape, type and device; the rest is for the forward that runs."""
        if _is_metadata(func):
            return super().__torch_function__(func, types, args, kwargs or {})
        if PartialForward.running is None:
            raise UnsupportedPlan.of("pipeline", f"{_name_of(func)} reads what only another stage's rank has")
        return PartialForward.running.operate(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse: there are no values."""
        raise UnsupportedPlan.of("pipeline", f"{func} reads what only another stage's rank has")


class StageEnd(BaseException):
    """The forward has come to the first module of a later stage."""


class ParameterNeededError(Exception):
    """A stage reads parameters that another one owns."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(f"a stage reads {', '.join(paths)} of another")
        self.paths = tuple(paths)


@dataclass(eq=False)
class PartialForward(TorchFunctionMode):
    """The forward of one batch on the rank of one stage; `run` calls it."""

    stage: int
    received: Mapping[int, torch.Tensor]
    """What earlier stages have handed on, by number."""
    events: list[Event]
    """Those of earlier stages, or of all; new ones of this stage are added."""
    wanted: Sequence[int] | None = None
    """Numbers that later stages read; None: not known yet, everything that is alive is handed on."""
    weights: frozenset[int] = frozenset()
    """Identities of tensors that count as parameters: those lent by another stage, and buffers of modules."""
    consumed: set[int] = field(default_factory=set)
    """Numbers of earlier stages that this one has read."""
    handed_on: dict[int, torch.Tensor] = field(default_factory=dict)

    running: ClassVar["PartialForward | None"] = None
    """The one that runs now."""

    def __post_init__(self) -> None:
        super().__init__()
        self._now = self._place = 0
        self._numbers: Any = WeakTensorKeyDictionary()
        self._next = 1 + max((slot.number for each in self.events for slot in each.slots), default=-1)
        self._absent: dict[int, AbsentTensor] = {}
        self._in_module = False

    def run(self, call: Callable[[], Any]) -> Any:
        """Return what the call returns, None if it ends before; then `handed_on` is what goes to the next stage."""
        PartialForward.running = self
        try:
            with self:
                result = call()
            # A result may have values of earlier stages in it.
            return self._present(result)
        except StageEnd:
            return None
        finally:
            PartialForward.running = None
            self._absent.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See an operation between modules."""
        return func(*args, **(kwargs or {})) if _is_metadata(func) else self.operate(func, args, kwargs or {})

    def operate(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Do an operation, or return what stands for its result."""
        if not any(self._depends(each) for each in _tensors_in((args, kwargs))):
            return func(*args, **kwargs)
        if self._in_module:
            return func(*self._present(args), **self._present(kwargs))
        if self._now < self.stage:
            return self._replay(_name_of(func), (args, kwargs))
        args, kwargs = self._present(args), self._present(kwargs)
        return self._note(_name_of(func), (args, kwargs), func(*args, **kwargs))

    def enter_stage(self, stage: int, path: str) -> None:
        """Begin a stage at the first call of its first module."""
        if stage <= self._now:
            return
        if stage > self._now + 1:
            raise UnsupportedPlan.of(
                "pipeline",
                f"the model calls {path!r}, where stage {stage} begins, before stage {self._now + 1} has begun",
            )
        self._now = stage
        if stage > self.stage:
            self._hand_on()
            raise StageEnd

    def finish(self, stages: int) -> None:
        """Refuse a forward that has not come to all stages."""
        if self._now < min(self.stage + 1, stages - 1):
            raise UnsupportedPlan.of("pipeline", f"the model does not come to stage {self._now + 1}")

    def call_module(self, path: str, call: Callable[..., Any], lacking: Sequence[str], args: Any, kwargs: Any) -> Any:
        """Call a module of this stage, or return what stands for the result of one of another."""
        if self._in_module:
            return call(*args, **kwargs)
        if self._now < self.stage:
            _refuse_collecting()
            return self._replay(path, (args, kwargs))
        if lacking:
            raise ParameterNeededError(lacking)
        args, kwargs = self._present(args), self._present(kwargs)
        self._in_module = True
        try:
            # Operations are not seen meanwhile, if no other mode lies above this one.
            with _pop_mode_temporarily() if _get_current_function_mode() is self else nullcontext():
                result = call(*args, **kwargs)
        finally:
            self._in_module = False
        return self._note(path, (args, kwargs), result)

    def _depends(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, AbsentTensor | nn.Parameter) or id(tensor) in self.weights or tensor in self._numbers

    def _present(self, tree: Any) -> Any:
        """Return a tree with what has been received in the place of absent tensors."""
        if not any(isinstance(each, AbsentTensor) for each in tensors_of(tree)):
            return tree
        return map_only(AbsentTensor, self._value_of, tree)

    def _value_of(self, absent: AbsentTensor) -> torch.Tensor:
        if absent.path:
            raise ParameterNeededError([absent.path])
        value = self.received.get(absent.number)
        if value is None:
            raise UnsupportedPlan.of(
                "pipeline", "the model reads other values of earlier stages than in its first batch"
            )
        self.consumed.add(absent.number)
        self._numbers[value] = absent.number
        return value

    def _event(self, name: str) -> Event | None:
        """Return the event at this place, None behind the last; refuse another one."""
        event = self.events[self._place] if self._place < len(self.events) else None
        if event is not None and event.name != name:
            raise UnsupportedPlan.of(
                "pipeline", f"the model calls {name} where it called {event.name} before; allowed: a forward that does "
                "the same with every batch of one shape"
            )  # fmt: skip
        return event

    def _replay(self, name: str, given: Any) -> Any:
        event = self._event(name)
        if event is None:
            raise UnsupportedPlan.of("pipeline", f"the model calls {name}, which it did not when its stages were run")
        self._place += 1
        if isinstance(event.result, bool | int | float | complex | list) and not event.slots:
            raise UnsupportedPlan.of(
                "pipeline", f"the model asks by {name} for values of stage {event.stage} that later stages have not"
            )
        leaves = tensors_of(given)
        device = leaves[0].device if leaves else torch.device("cpu")

        def absent(slot: _Slot) -> AbsentTensor:
            if slot.number not in self._absent:
                self._absent[slot.number] = AbsentTensor(slot.like, device, number=slot.number)
            return self._absent[slot.number]

        return map_only(_Slot, absent, event.result)

    def _note(self, name: str, given: Any, result: Any) -> Any:
        """Give the tensors of a result numbers, those of before if the forward is known."""
        # Nobody reads what the last stage makes, so that a loss may do other things with other batches.
        if self.wanted is not None and not self.wanted:
            return result
        event = self._event(name)
        tensors = tensors_of(result)
        if event is None:
            del given
            slots = iter([self._slot_of(each) for each in tensors])
            self.events.append(
                Event(name, self.stage, without_objects(map_only(torch.Tensor, lambda _: next(slots), result)))
            )
        elif len(event.slots) != len(tensors):
            raise UnsupportedPlan.of(
                "pipeline", f"{name} returns {len(tensors)} tensors where it returned {len(event.slots)}"
            )
        else:
            for slot, tensor in zip(event.slots, tensors, strict=True):
                self._numbers[tensor] = slot.number
        self._place += 1
        return result

    def _slot_of(self, tensor: torch.Tensor) -> _Slot:
        # What hands on its argument returns the same tensor.
        if tensor not in self._numbers:
            self._numbers[tensor], self._next = self._next, self._next + 1
        return _Slot(self._numbers[tensor], TensorLike.of(tensor))

    def _hand_on(self) -> None:
        alive = {**self.received, **{number: tensor for tensor, number in self._numbers.items()}}
        numbers = sorted(alive) if self.wanted is None else self.wanted
        lost = [number for number in numbers if number not in alive]
        if lost:
            raise UnsupportedPlan.of("pipeline", "a stage no longer makes what later stages read in the first batch")
        self.handed_on = {number: alive[number] for number in numbers}


def _is_metadata(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(func.__self__, "__name__", "") not in _TENSOR_PROPERTIES
    return name in _METADATA


def _name_of(func: Any) -> str:
    name = getattr(func, "__name__", type(func).__name__)
    return f"Tensor.{func.__self__.__name__}" if name == "__get__" else str(name)


def _tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors among an operation's arguments, which are no deeper than lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [tensor for each in value for tensor in _tensors_in(each)]


def _refuse_collecting() -> None:
    """Refuse what transformers collects inside of modules by hooks, such as the logits of routers for a loss."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collected = None if capturing is None else capturing._active_collector.get()  # noqa: SLF001  no public question
    if collected:
        raise UnsupportedPlan.of(
            "pipeline",
            f"the model collects {', '.join(collected)} of all its layers, of which a stage has its own; allowed: "
            f"a configuration without, such as output_{next(iter(collected))}=False",
        )


def without_objects(tree: Any) -> Any:
    """Return a tree that can be sent: caches and other objects, which each rank has of its own, become None."""
    plain = bool | int | float | complex | str | torch.Size | torch.dtype | torch.device | torch.Tensor | _Slot
    return map_only(object, lambda leaf: leaf if isinstance(leaf, plain) else None, tree)
