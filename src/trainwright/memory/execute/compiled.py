"""Fitting by torch.compile: what the compiled forward saves is chosen so that a step stays within the budget.

The whole model is one graph. A partitioner of our own looks at the joint graph of forward and backward, lets
`saving.choose` say what is saved and what is run again (torch's own partitions at several of its activation budgets
are among the starts), and hands that to torch's partitioner. The step is then measured; where it takes more than the
budget, or leaves room, it is compiled again with so much less or more.
"""

import copy
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
from torch import fx, nn
from torch._functorch.compile_utils import fx_graph_cse
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.optim import Optimizer

from trainwright.errors import (
    BudgetError,
    BudgetExceeded,
    InfeasibleBudget,
    TrainwrightError,
    UnsupportedModel,
    closest,
)
from trainwright.memory.budget import read_budget, readable
from trainwright.memory.execute.allocated import allocated_bytes
from trainwright.memory.execute.counted import tensors_of, total_bytes
from trainwright.memory.execute.measure import Call, granule_of, named_state_bytes, tracked_peak, train_once, untouched
from trainwright.memory.execute.optimizers import state_bytes
from trainwright.memory.execute.stages import check_trains
from trainwright.memory.execute.traced import Traced
from trainwright.memory.saving import Choice, choose, least

__all__ = ["CompiledPlan", "fit_compiled"]

Compiler = Literal["inductor", "aot_eager"]
Loss = Callable[[Any], torch.Tensor]
_KNOBS = (0.75, 0.5, 0.25, 0.1, 0.0)  # torch's activation budgets among the starts
_ROOM = 0.03  # of the budget, that another compilation is worth


@dataclass(frozen=True, kw_only=True)
class CompiledPlan:
    """What a compiled step saves for its backward, and what it was measured to take."""

    budget_bytes: int
    peak_bytes: int
    """Measured: live allocations of a step at their most, with parameters, buffers and batch."""
    simulated_bytes: int
    """As the sweep foresaw it, without what a loss takes for itself."""
    seconds_again: float
    """What is run again, each operation measured alone."""
    forward_seconds: float
    """All of forward, measured so."""
    saved: tuple[str, ...]
    """Names of values of the joint graph."""
    again: tuple[str, ...]
    """Names of operations that backward runs again."""
    compiler: Compiler

    @property
    def summary(self) -> dict[str, Any]:
        """The plan's numbers by name."""
        return {**asdict(self), "saved": len(self.saved), "again": len(self.again)}


def fit_compiled(
    model: nn.Module,
    sample: Any,
    *,
    budget: str | float,
    loss: Loss | None = None,
    optimizer: Optimizer | str | None = None,
    accumulate: bool = False,
    reserve_bytes: int = 0,
    compiler: Compiler = "inductor",
    tries: int = 3,
) -> nn.Module:
    """Return a compiled module that trains inside `budget`; see `trainwright.memory.fit`.

    `compiler` is what torch.compile makes code with; it compiles up to `tries` times. Raises `InfeasibleBudget`,
    `BudgetExceeded`, and `UnsupportedModel` for a model that is not one graph.
    """
    if compiler not in get_args(Compiler):
        allowed = get_args(Compiler)
        raise BudgetError(f"compiler: got {compiler!r}; allowed: {', '.join(allowed)}{closest(str(compiler), allowed)}")
    if tries < 1:
        raise BudgetError(f"tries: got {tries!r}; allowed: a whole number >= 1")
    check_trains(model)
    granule, passes = granule_of(model), 2 if accumulate else 1
    gradients = total_bytes((each for each in model.parameters() if each.requires_grad), granule)
    if not gradients:
        raise UnsupportedModel(
            "model: got no parameter that wants a gradient; allowed: at least one, for a plan to serve"
        )
    if isinstance(optimizer, Optimizer):
        elsewhere = reserve_bytes + state_bytes(optimizer, granule=granule)
    else:
        elsewhere = reserve_bytes + named_state_bytes(optimizer, gradients)
    budget_bytes = read_budget(budget, _plain_peak(model, sample, loss, passes) + elsewhere)
    batch = tensors_of((sample.args, dict(sample.kwargs)) if isinstance(sample, Call) else sample)
    fixed = elsewhere + total_bytes([*model.parameters(), *model.buffers(), *batch], granule)
    fixed += gradients if accumulate else 0
    cuda = any(each.is_cuda for each in model.parameters())
    limit, peaks = budget_bytes - fixed, []
    planned = copy.copy(model)  # the same parameters, buffers and children
    best: tuple[CompiledPlan, Callable[..., Any]] | None = None
    for _ in range(tries):
        partition = _Partition(limit, budget_bytes, fixed, granule, compiler)
        run = _entry(planned, partition)
        try:
            with untouched(model):
                train_once(run, sample, loss)  # compiles
                if not accumulate:
                    model.zero_grad()
                peak = fixed + allocated_bytes(lambda: train_once(run, sample, loss), cuda=cuda)  # noqa: B023  at once
        except Exception as error:
            if best is not None and isinstance(_cause(error), InfeasibleBudget):
                break
            raise _refusal(model, error) from error
        peaks.append(peak)
        plan = partition.plan(peak)
        if peak <= budget_bytes and (best is None or plan.seconds_again < best[0].seconds_again):
            best = plan, run
        spare = budget_bytes - peak
        if spare >= 0 and (not partition.costs or spare < _ROOM * budget_bytes):
            break
        limit = partition.simulated_bytes + spare  # what the simulation missed, it misses again
    if best is None:
        raise BudgetExceeded(
            f"budget: got {readable(budget_bytes)}, and a compiled step took {readable(min(peaks))} though its plan "
            "was within it; allowed: a budget with room for what compiled code takes beyond its graph; raise it"
        )
    return _carried_out(planned, *best, total_bytes(batch, granule))


class _Partition(CustomPartitionerFn):
    """Partitions a joint graph so that it takes at most `limit` bytes beside what is fixed, and remembers how."""

    def __init__(self, limit: int, budget_bytes: int, fixed_bytes: int, granule: int, compiler: Compiler) -> None:
        self.costs = False
        """Whether more is run again than by torch's own partition."""
        self._limit, self._budget_bytes, self._fixed_bytes = limit, budget_bytes, fixed_bytes
        self._granule, self._compiler = granule, compiler
        self._made: tuple[Traced, Choice] | None = None

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        gm.graph.eliminate_dead_code()
        gm.graph = fx_graph_cse(gm.graph)
        traced = Traced(gm.graph, kwargs["num_fwd_outputs"], fuses=self._compiler == "inductor", granule=self._granule)
        plain = traced.named(_saved_by_torch(gm, 1.0, kwargs))
        choice = traced.step.tried(plain, self._limit)
        self.costs = choice.excess > 0
        if self.costs:
            starts = [plain, *(traced.named(_saved_by_torch(gm, knob, kwargs)) for knob in _KNOBS)]
            choice = choose(traced.step, self._limit, starts)
            if choice.excess:
                raise self._infeasible(least(traced.step, starts))
            traced.tag(choice)
        self._made = traced, choice
        with functorch_config.patch(activation_memory_budget=1.0):
            return min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Partition":
        return self  # inductor copies its settings, this one among them, and makes keys of them; graphs cannot be so

    def __reduce__(self) -> tuple[object, ...]:
        return str, (self.uuid(),)

    @property
    def simulated_bytes(self) -> int:
        """The peak that was foreseen, beside what is fixed."""
        assert self._made is not None  # noqa: S101  a step has been compiled
        return self._made[1].peak_bytes

    def uuid(self) -> str:
        """Say that all that this does is to be seen in the graphs that it makes."""
        return "trainwright"

    def backend(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile for torch.compile."""
        # A cached result would have been partitioned for another budget.
        with functorch_config.patch(enable_autograd_cache=False):
            if self._compiler == "inductor":
                from torch._inductor.compile_fx import compile_fx

                with inductor_config.patch(custom_partitioner_fn=self):
                    return compile_fx(gm, inputs)  # type: ignore[return-value]  # a function, of a model
            from torch._dynamo.backends.common import aot_autograd
            from torch._dynamo.backends.debugging import boxed_nop

            eager = aot_autograd(fw_compiler=boxed_nop, partition_fn=self, keep_inference_input_mutations=True)
            return eager(gm, inputs)

    def plan(self, peak_bytes: int) -> CompiledPlan:
        """Return what was chosen, with the peak that was measured."""
        assert self._made is not None  # noqa: S101  a step has been compiled
        traced, choice = self._made
        step, names = traced.step, [node.name for node in traced.nodes]
        return CompiledPlan(
            budget_bytes=self._budget_bytes,
            peak_bytes=peak_bytes,
            simulated_bytes=choice.peak_bytes + self._fixed_bytes,
            seconds_again=choice.seconds,
            forward_seconds=float(step.seconds[: step.forward].sum()),
            saved=tuple(name for name, each in zip(names, choice.saved, strict=True) if each),
            again=tuple(name for name, each in zip(names, choice.again, strict=True) if each),
            compiler=self._compiler,
        )

    def _infeasible(self, lowest: int) -> InfeasibleBudget:
        needed = lowest + self._budget_bytes - self._limit
        return InfeasibleBudget(
            f"budget: got {readable(self._budget_bytes)} ({self._budget_bytes} bytes); allowed: at least "
            f"{readable(needed)} ({needed} bytes), the least found for this model compiled; raise the budget, shrink "
            "the batch, or take backend='eager', which may run a part again more than once",
            minimal_bytes=needed,
            owners={"fixed": self._budget_bytes - self._limit, "values of the step": lowest},
        )


def _saved_by_torch(gm: fx.GraphModule, knob: float, settings: dict[str, Any]) -> set[str]:
    """Return the names of what torch's partitioner saves at one of its activation budgets."""
    with functorch_config.patch(activation_memory_budget=knob):
        _, backward = min_cut_rematerialization_partition(copy.deepcopy(gm), None, **settings)
    return {node.name for node in backward.graph.nodes if node.op == "placeholder"}


def _entry(module: nn.Module, partition: _Partition) -> Callable[..., Any]:
    """Return a module's forward, compiled as one graph."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return plain(module, *args, **kwargs)

    plain = type(module).forward
    # A code object of its own: torch counts compilations by it, and gives up after eight.
    forward.__code__ = forward.__code__.replace(co_name="planned_forward")
    return torch.compile(forward, backend=partition.backend, fullgraph=True, dynamic=False)


def _carried_out(module: nn.Module, plan: CompiledPlan, run: Callable[..., Any], input_bytes: int) -> nn.Module:
    """Let a module train by compiled code."""
    plain, granule, me = type(module).forward, granule_of(module), weakref.ref(module)

    def forward(*args: Any, **kwargs: Any) -> Any:
        module = me()
        assert module is not None  # noqa: S101  it is being called
        if not (module.training and torch.is_grad_enabled()):
            return plain(module, *args, **kwargs)
        size = total_bytes(tensors_of((args, kwargs)), granule)
        if size > input_bytes:
            raise BudgetExceeded(
                f"batch: got {readable(size)}, the plan is for at most {readable(input_bytes)}; allowed: batches no "
                "larger than the sample; fit again with a larger one"
            )
        return run(*args, **kwargs)

    module.forward = forward
    module.plan = plan  # type: ignore[assignment]  # nn.Module types its attributes as tensors and modules
    return module


def _plain_peak(model: nn.Module, sample: Any, loss: Loss | None, passes: int) -> int:
    try:
        return tracked_peak(model, sample, loss=loss, passes=passes)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise UnsupportedModel(
            f"sample: {type(model).__name__} refuses it: {error}; allowed: a sample that the model takes"
        ) from error


def _cause(error: BaseException) -> BaseException:
    """Return the refusal that torch.compile wrapped, or the error itself."""
    each: BaseException | None = error
    while each is not None:
        if isinstance(each, TrainwrightError):
            return each
        each = getattr(each, "inner_exception", None) or each.__cause__
    return error


def _refusal(model: nn.Module, error: Exception) -> BaseException:
    """Return one sentence in place of what torch.compile says on several pages; other errors are their own."""
    cause = _cause(error)
    if isinstance(cause, TrainwrightError) or not type(error).__module__.startswith("torch._"):
        return cause
    inner = getattr(error, "inner_exception", None) or error
    if "CxxCompiler" in type(inner).__name__ or "CxxCompiler" in str(inner):
        return UnsupportedModel(
            "compiler: got 'inductor', and no C++ compiler works here; allowed: 'aot_eager', or a machine with one"
        )
    said = next((line.strip() for line in str(inner).splitlines() if line.strip()), type(inner).__name__)
    return UnsupportedModel(
        f"model: {type(model).__name__} cannot be compiled as one graph ({said}); allowed with backend='compile': "
        "models that torch.compile(fullgraph=True) takes; take backend='eager'"
    )
