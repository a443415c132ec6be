"""Train a compiled model within a memory budget by torch's own knob, `activation_memory_budget`.

torch.compile makes one graph of forward and backward; its partitioner decides what forward saves and what backward
recomputes. The knob bounds the bytes that are saved, as a share of what would be saved without it, and not the peak
of the step. So several shares are compiled, the peak of each is measured at the allocator, and the largest share
whose peak keeps the budget is used.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import torch
import torch._functorch.config as functorch_config
from torch import autograd, nn
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch.optim import Optimizer

from trainwright.errors import BudgetError, InfeasibleBudget, UnsupportedModel
from trainwright.plan.byte_sizes import format_bytes, read_budget
from trainwright.plan.memory.plan_record import CompiledPlan, Compiler
from trainwright.train.parallel.recompute.entry import PlannedForward
from trainwright.train.parallel.recompute.optimizer_state import named_state_bytes, state_bytes
from trainwright.train.parallel.recompute.sample_step import as_call, plain_peak, restored_after, train_once
from trainwright.train.parallel.recompute.stage_calls import check_trains
from trainwright.train.parallel.recompute.trees import granule_of, tensors_of, total_bytes
from trainwright.validators import check, one_of

__all__ = ["allocated_bytes", "apply_compiled", "fit_compiled"]

_SHARES = (1.0, 0.75, 0.5, 0.25, 0.1, 0.0)
"""Of what a compiled forward saves without a budget; each share is one compilation."""


def fit_compiled(
    model: nn.Module,
    sample: Any,
    *,
    budget: str | float,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Optimizer | str | None = None,
    accumulate: bool = False,
    reserve_bytes: int = 0,
    compiler: Compiler = "inductor",
) -> nn.Module:
    """Return a compiled module that trains inside `budget`; see `trainwright.memory.fit`.

    Compiles up to six times. Raises `InfeasibleBudget` with the least peak measured where no share keeps the budget,
    and `UnsupportedModel` for a model that is not one graph.
    """
    check(compiler, one_of(*get_args(Compiler)), "compiler", BudgetError)
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
    call = as_call(sample)
    batch = tensors_of((call.args, dict(call.kwargs)))
    fixed = elsewhere + total_bytes([*model.parameters(), *model.buffers(), *batch], granule)
    # Gradients that add up are there before the measured step, which does not allocate them.
    fixed += gradients if accumulate else 0
    cuda = any(each.is_cuda for each in model.parameters())
    # A shallow copy has the same parameters, buffers and children.
    planned = copy.copy(model)
    least = -1
    # From the fastest to the smallest: the first share whose measured peak fits is taken.
    for share in _SHARES:
        run = _compile(planned, compiler, share)
        try:
            with restored_after(model, batch):
                train_once(run, sample, loss)  # compiles
                # Without accumulation the measured step has to make its gradients, as every later step does.
                if not accumulate:
                    model.zero_grad()
                peak = fixed + allocated_bytes(lambda: train_once(run, sample, loss), cuda=cuda)  # noqa: B023  at once
        except Exception as error:
            raise _refusal(model, error) from error
        if peak <= budget_bytes:
            plan = CompiledPlan(
                budget_bytes=budget_bytes, peak_bytes=peak, fixed_bytes=fixed, input_bytes=total_bytes(batch, granule),
                saved_share=share, compiler=compiler, torch_version=torch.__version__,
            )  # fmt: skip
            return _train_by(planned, plan, run)
        least = peak if least < 0 else min(least, peak)
    raise InfeasibleBudget(
        f"budget: got {format_bytes(budget_bytes)} ({budget_bytes} bytes); allowed: at least {format_bytes(least)} "
        f"({least} bytes), the least measured for this model compiled; raise the budget, shrink the batch, or take "
        "backend='eager'",
        minimal_bytes=least,
        owners={"fixed": fixed, "values of the step": least - fixed},
    )


def apply_compiled(model: nn.Module, plan: CompiledPlan) -> nn.Module:
    """Return a module that is compiled with the share of a plan when its first batch comes."""
    check_trains(model)
    return _train_by(copy.copy(model), plan)


def allocated_bytes(step: Callable[[], object], *, cuda: bool) -> int:
    """Return the most bytes alive during a step of those allocated in it, on the CPU or on the current CUDA device.

    Compiled code makes tensors that no dispatch mode sees, so that bytes are counted at the allocator.
    """
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    # The profiler without Kineto, which writes to the terminal where it starts and ends.
    settings = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    start, stop = autograd._enable_profiler_legacy, autograd._disable_profiler_legacy  # type: ignore[attr-defined]  # noqa: SLF001
    start(settings)
    try:
        step()
    finally:
        records = stop()
    live = peak = 0
    for thread in records:
        for event in thread:
            if event.kind() == "memory_alloc":  # type: ignore[comparison-overlap]  # declared as a number
                # Memory that is freed comes as a negative number.
                live += event.cpu_memory_usage()
                peak = max(peak, live)
    return peak


def _compile(module: nn.Module, compiler: Compiler, share: float) -> Callable[..., Any]:
    """Return a module's forward as one compiled graph that saves at most a share of its values."""
    plain = type(module).forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return plain(module, *args, **kwargs)

    # A code object of its own: torch counts compilations by it, and gives up after eight.
    forward.__code__ = forward.__code__.replace(co_name="planned_forward")
    compiled = torch.compile(forward, backend=compiler, fullgraph=True, dynamic=False)

    def run(*args: Any, **kwargs: Any) -> Any:
        # Compilation happens in the first call, and again for a batch of another shape.
        with functorch_config.patch(activation_memory_budget=share):
            return compiled(*args, **kwargs)

    return run


def _train_by(module: nn.Module, plan: CompiledPlan, run: Callable[..., Any] | None = None) -> nn.Module:
    make = partial(_make_trainer, plan)
    module.forward = PlannedForward(module, make, train=make(run), most_bytes=plan.input_bytes)
    module.plan = plan  # type: ignore[assignment]  # nn.Module types its attributes as tensors and modules
    return module


def _make_trainer(plan: CompiledPlan, run: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return what trains a module by compiled code, which is made with the first batch unless it is passed in."""

    def train(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal run
        run = run or _compile(module, plan.compiler, plan.saved_share)
        return run(*args, **kwargs)

    return train


def _refusal(model: nn.Module, error: Exception) -> BaseException:
    """Return one sentence in place of what torch.compile says on several pages; other errors are their own."""
    if not type(error).__module__.startswith("torch._"):
        return error
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
