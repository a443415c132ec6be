"""Fitting by torch.compile: what the compiled forward saves is chosen so that a step stays within the budget.

The whole model is one graph. A partitioner of our own looks at the joint graph of forward and backward, lets
`saving.choose` say what is saved and what is run again (torch's own partitions at several of its activation budgets
are among the starts), and hands that to torch's partitioner. The step is then measured; where it takes more than the
budget, or leaves room, it is compiled again with so much less or more.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
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
    InfeasibleBudget,
    PlanMismatch,
    TrainwrightError,
    UnsupportedModel,
    closest,
)
from trainwright.kernels import Flags
from trainwright.memory.budget import read_budget, readable
from trainwright.memory.compiled_plan import CompiledPlan, Compiler, RunAgain, SavedValue
from trainwright.memory.execute.allocated import allocated_bytes
from trainwright.memory.execute.counted import granule_of, total_bytes
from trainwright.memory.execute.entry import Forward
from trainwright.memory.execute.measure import called, named_state_bytes, plain_peak, train_once, untouched
from trainwright.memory.execute.optimizers import state_bytes
from trainwright.memory.execute.stages import check_trains
from trainwright.memory.execute.traced import Traced
from trainwright.memory.execute.trees import tensors_of
from trainwright.memory.saving import Choice, choose, least

__all__ = ["apply_compiled", "fit_compiled"]

Loss = Callable[[Any], torch.Tensor]
_KNOBS = (0.75, 0.5, 0.25, 0.1, 0.0)  # torch's activation budgets among the starts
_ROOM = 0.03  # of the budget, that another compilation is worth


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

    `compiler` is what torch.compile makes code with; it compiles up to `tries` times, and once more where none of them
    kept the budget: with the least that is found. Where a choice takes more than was foreseen, the last of three tries
    is the fastest of torch's own partitions that should take less. Raises `InfeasibleBudget`, whose `minimal_bytes` are
    the measured peak of the least, and `UnsupportedModel` for a model that is not one graph.
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
    budget_bytes = read_budget(budget, plain_peak(model, sample, loss=loss, passes=passes) + elsewhere)
    given = called(sample)
    batch = tensors_of((given.args, dict(given.kwargs)))
    fixed = elsewhere + total_bytes([*model.parameters(), *model.buffers(), *batch], granule)
    fixed += gradients if accumulate else 0
    cuda = any(each.is_cuda for each in model.parameters())
    input_bytes = total_bytes(batch, granule)
    limit: int | None = budget_bytes - fixed
    planned = copy.copy(model)  # the same parameters, buffers and children
    best: tuple[CompiledPlan, Callable[..., Any]] | None = None
    over: int | None = None  # bytes simulated of the smallest choice that took more than the budget
    as_torch = False
    for left in range(tries - 1, -2, -1):
        partition = _Partition(limit, granule, compiler, below=over if as_torch else None)
        run = _entry(planned, partition)
        try:
            with untouched(model, batch):
                train_once(run, sample, loss)  # compiles
                if not accumulate:
                    model.zero_grad()
                peak = fixed + allocated_bytes(lambda: train_once(run, sample, loss), cuda=cuda)  # noqa: B023  at once
        except Exception as error:
            raise _refusal(model, error) from error
        plan = partition.plan(budget_bytes, peak, fixed, input_bytes)
        if peak <= budget_bytes and (best is None or plan.seconds_again < best[0].seconds_again):
            best = plan, run
        spare = budget_bytes - peak
        enough = spare >= 0 and (not partition.costs or spare < _ROOM * budget_bytes)
        if enough or (best is not None and (left <= 0 or as_torch or (partition.lowest and over is None))):
            break
        if partition.lowest and spare < 0:
            raise _infeasible(budget_bytes, peak, fixed)
        if spare < 0:
            over = min(over or partition.simulated_bytes, partition.simulated_bytes)
        as_torch = over is not None and (partition.lowest or (left == 1 and tries > 2))
        # What the simulation missed, it misses again.
        limit = partition.simulated_bytes + spare if left else None
    assert best is not None  # noqa: S101  or it was refused
    return _carried_out(planned, *best)


def apply_compiled(model: nn.Module, plan: CompiledPlan) -> nn.Module:
    """Return a compiled module that saves what a plan says; see `trainwright.memory.apply`.

    It is compiled when its first batch comes, and raises `PlanMismatch` then if its graph is another. A smaller batch
    later on is planned anew within the plan's budget.
    """
    check_trains(model)
    return _carried_out(copy.copy(model), plan)


class _Partition(CustomPartitionerFn):
    """Partitions a joint graph so that it takes at most `limit` bytes beside what is fixed, and remembers how.

    Without a limit, or with one that the search does not reach, it takes the least that is found. With `below`, it
    takes the fastest of torch's own partitions that take less than that, if one does. The first graph of a `given` plan
    is partitioned as that says.
    """

    def __init__(
        self,
        limit: int | None,
        granule: int,
        compiler: Compiler,
        given: CompiledPlan | None = None,
        *,
        below: int | None = None,
    ) -> None:
        self.costs = False
        """Whether more is run again than by torch's own partition."""
        self.lowest = False
        """Whether it is the least that is found."""
        self._limit, self._granule, self._compiler, self._given = limit, granule, compiler, given
        self._below = below
        self._made: tuple[Traced, Choice] | None = None

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        gm.graph.eliminate_dead_code()
        gm.graph = fx_graph_cse(gm.graph)
        traced = Traced(
            gm.graph, kwargs["num_fwd_outputs"], fuses=self._compiler == "inductor", granule=self._granule,
            measured=self._given is None,
        )  # fmt: skip
        plain = traced.named(_saved_by_torch(gm, 1.0, kwargs))
        choice = self._planned(traced) if self._given else self._chosen(gm, traced, plain, kwargs)
        self.costs = bool((choice.saved != traced.step.tried(plain).saved).any())
        if self.costs:
            traced.tag(choice)
        self._made, self._given = (traced, choice), None
        with functorch_config.patch(activation_memory_budget=1.0):
            return min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)

    def _chosen(self, gm: fx.GraphModule, traced: Traced, plain: Flags, settings: dict[str, Any]) -> Choice:
        """Return the fastest choice found within the limit, torch's own if that is, or else the least."""
        if self._below is not None:
            own = [traced.step.tried(traced.named(_saved_by_torch(gm, knob, settings))) for knob in _KNOBS]
            if lower := [each for each in own if each.peak_bytes < self._below]:
                return min(lower, key=lambda each: each.seconds)
        if self._limit is not None:
            choice = traced.step.tried(plain, self._limit)
            if not choice.excess:
                return choice
        starts = [plain, *(traced.named(_saved_by_torch(gm, knob, settings)) for knob in _KNOBS)]
        if self._limit is not None:
            choice = choose(traced.step, self._limit, starts)
            if not choice.excess:
                return choice
        self.lowest = True
        return least(traced.step, starts)

    def _planned(self, traced: Traced) -> Choice:
        """Return the choice of the plan; raise PlanMismatch if that is for another graph."""
        assert self._given is not None  # noqa: S101  its caller has looked
        if traced.digest != self._given.graph:
            raise PlanMismatch(
                f"plan: got one for the graph {self._given.graph}, the model's with this batch is {traced.digest}; "
                "allowed: a plan of this very model, batch and version of torch; plan again"
            )
        return traced.step.tried(traced.named({each.name for each in self._given.saved}))

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

    def plan(self, budget_bytes: int, peak_bytes: int, fixed_bytes: int, input_bytes: int) -> CompiledPlan:
        """Return what was chosen, with the peak that was measured."""
        assert self._made is not None  # noqa: S101  a step has been compiled
        traced, choice = self._made
        step = traced.step
        saved, seen = [], {-1}
        for place in np.flatnonzero(choice.saved).tolist():
            own = int(step.storage[place])
            size = 0 if own in seen else int(step.kept[own])
            seen.add(own)
            saved.append(SavedValue(traced.nodes[place].name, traced.module(place), size))
        again = [RunAgain(traced.nodes[place].name, traced.module(place), float(step.seconds[place]))
                 for place in np.flatnonzero(choice.again).tolist()]  # fmt: skip
        return CompiledPlan(
            budget_bytes=budget_bytes,
            peak_bytes=peak_bytes,
            simulated_bytes=choice.peak_bytes + fixed_bytes,
            fixed_bytes=fixed_bytes,
            input_bytes=input_bytes,
            forward_seconds=float(step.seconds[: step.forward].sum()),
            saved=tuple(saved),
            again=tuple(again),
            compiler=self._compiler,
            graph=traced.digest,
            torch_version=torch.__version__,
        )


def _infeasible(budget_bytes: int, needed: int, fixed_bytes: int) -> InfeasibleBudget:
    return InfeasibleBudget(
        f"budget: got {readable(budget_bytes)} ({budget_bytes} bytes); allowed: at least {readable(needed)} ({needed} "
        "bytes), the least found for this model compiled; raise the budget, shrink the batch, or take "
        "backend='eager', which may run a part again more than once",
        minimal_bytes=needed,
        owners={"fixed": fixed_bytes, "values of the step": needed - fixed_bytes},
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


class _Compiled:
    """Trains a module by the compiled code of a plan, made when its first batch comes if it is not given."""

    def __init__(self, plan: CompiledPlan, run: Callable[..., Any] | None = None) -> None:
        self._plan, self._run = plan, run

    def __call__(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self._run is None:
            plan = self._plan
            limit = plan.budget_bytes - plan.fixed_bytes
            self._run = _entry(module, _Partition(limit, granule_of(module), plan.compiler, plan))
        try:
            return self._run(*args, **kwargs)
        except Exception as error:
            if isinstance(_cause(error), PlanMismatch):  # of a plan from a file, when it meets its first batch
                raise _cause(error) from None
            raise


def _carried_out(module: nn.Module, plan: CompiledPlan, run: Callable[..., Any] | None = None) -> nn.Module:
    """Let a module train by compiled code."""
    made = _Compiled(plan, run)
    module.forward = Forward(module, partial(_Compiled, plan), train=made, most_bytes=plan.input_bytes)
    module.plan = plan  # type: ignore[assignment]  # nn.Module types its attributes as tensors and modules
    return module


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
