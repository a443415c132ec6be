"""Fitting a model into a budget: stages, their chain, a plan, the module that follows it, and one checked step."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trainwright.errors import BudgetExceeded, InfeasibleBudget, PlanMismatch, UnsupportedModel
from trainwright.model.chain import Chain
from trainwright.plan.byte_sizes import format_bytes, read_budget
from trainwright.plan.memory.plan_record import CompiledPlan, Plan
from trainwright.plan.memory.planning import full_bytes, plan_chain
from trainwright.train.parallel.recompute.compiled import apply_compiled
from trainwright.train.parallel.recompute.copies import measure_link
from trainwright.train.parallel.recompute.entry import carry_out
from trainwright.train.parallel.recompute.measure import measure_chain, state_bytes
from trainwright.train.parallel.recompute.program import place_acts
from trainwright.train.parallel.recompute.sample_step import StepResult, as_call, call_with, plain_peak, tracked_peak
from trainwright.train.parallel.recompute.stages import StageRow, split_model, whole_row
from trainwright.train.parallel.recompute.tracing import CallForm
from trainwright.train.parallel.recompute.trees import granule_of

__all__ = ["apply", "chain_of", "fit"]

_TRIES = 10
_WHOLE = ("model",)
Loss = Callable[[Any], torch.Tensor]


def chain_of(
    model: nn.Module,
    sample: Any,
    *,
    loss: Loss | None = None,
    optimizer: Optimizer | str | None = None,
    accumulate: bool = False,
    reserve_bytes: int = 0,
    skips: bool = True,
) -> Chain:
    """Return the measured chain of a model; the arguments are those of `fit`, and `skips` that of `split_model`."""
    row, _ = _cut_model(model, sample, loss, skips=skips)
    return _measure(model, row, sample, loss, optimizer=optimizer, accumulate=accumulate, reserve_bytes=reserve_bytes)


def _measure(
    model: nn.Module,
    row: StageRow,
    sample: Any,
    loss: Loss | None,
    *,
    optimizer: Optimizer | str | None,
    accumulate: bool,
    reserve_bytes: int,
) -> Chain:
    state = state_bytes(optimizer, granule=granule_of(model)) if isinstance(optimizer, Optimizer) else optimizer
    chain = measure_chain(
        model, row, call_with(row.bind, sample), loss=loss, optimizer=state, accumulate=accumulate,
        reserve_bytes=reserve_bytes,
    )  # fmt: skip
    # What a step takes without any plan, with all that the device holds beside the model.
    peak = plain_peak(model, sample, loss=loss, passes=2 if accumulate else 1)
    return replace(chain, plain_peak_bytes=peak + chain.fixed.get("optimizer", 0) + reserve_bytes)


def _cut_model(
    model: nn.Module, sample: Any, loss: Loss | None, *, skips: bool = True
) -> tuple[StageRow, StepResult | None]:
    """Return stages that do what the model does, and what it does, if it takes the sample at all."""
    given = as_call(sample)
    form = CallForm.of(model, given.args, given.kwargs)
    # Stages must do what the model does; otherwise take modules as they are, and at last the model as one stage.
    row = split_model(model, form, skips=skips)
    try:
        own = StepResult.of(model, model, sample, loss)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001  the stage that refuses the sample will be named
        return row, None
    difference = _find_difference(own, row, model, sample, loss)
    if not difference:
        return row, own
    row = split_model(model, form, skips=skips, deep=False)
    if not _find_difference(own, row, model, sample, loss):
        return row, own
    return whole_row(model, why=f"{type(model).__name__}, traced, is not what it is ({difference})"), own


def _find_difference(own: StepResult, row: StageRow, model: nn.Module, sample: Any, loss: Loss | None) -> str:
    """Return what stages do that is not what the model does, "" if nothing."""
    if row.whole:
        return ""

    def run(*args: Any, **kwargs: Any) -> Any:
        row.refresh()
        return row.through(row.bind(*args, **kwargs))

    found = ""
    # Twice, as what a graph holds by itself must not change from run to run.
    for _ in range(2):
        try:
            found = found or own.difference(StepResult.of(run, model, sample, loss))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001  a graph may fail in as many ways as models are written
            return str(error).strip().partition("\n")[0] or type(error).__name__
    # A model may not even be what itself is: operations on a GPU may add up in any order.
    return "" if found and own.difference(StepResult.of(model, model, sample, loss)) else found


def apply(model: nn.Module, plan: Plan | CompiledPlan) -> nn.Module:
    """Return a module that trains as a plan says; raise PlanMismatch if the plan was made for other stages."""
    if isinstance(plan, CompiledPlan):
        return apply_compiled(model, plan)
    names = tuple(stage.name for stage in plan.chain.stages)
    if names == _WHOLE:
        return _apply_plan(model, whole_row(model, why="so is the plan's"), plan)
    row = split_model(model)
    # The sample had what has a default, or modules are not looked into.
    if row.names != names:
        forms = CallForm.default(model), CallForm.full(model)
        others = (split_model(model, form, deep=deep) for deep in (True, False) for form in forms)
        row = next((other for other in others if other.names == names), row)
    return _apply_plan(model, row, plan)


def fit(
    model: nn.Module,
    sample: Any,
    *,
    budget: str | float,
    loss: Loss | None = None,
    optimizer: Optimizer | str | None = None,
    accumulate: bool = False,
    reserve_bytes: int = 0,
    agree: Callable[[Any], Any] = lambda value: value,
    **settings: Any,
) -> nn.Module:
    """Return a module that trains inside `budget` with the least overhead found; see `trainwright.memory.fit`.

    `agree` makes what ranks have measured one value, where all are to plan the same.
    """
    row, own = _cut_model(model, sample, loss)
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    if settings.get("offload") and settings.get("bandwidth") is None and device.type == "cuda":
        settings["bandwidth"] = measure_link(device)
    chain = agree(
        _measure(model, row, sample, loss, optimizer=optimizer, accumulate=accumulate, reserve_bytes=reserve_bytes)
    )
    budget_bytes, peak = read_budget(budget, full_bytes(chain)), 0
    elsewhere = chain.fixed.get("optimizer", 0) + reserve_bytes  # not seen in a step of the model
    for _ in range(_TRIES):
        try:
            plan = plan_chain(chain, budget=budget_bytes, **settings)
        except InfeasibleBudget as error:
            if not row.whole:
                raise
            said = f"{error}: {row.whole}"
            raise InfeasibleBudget(said, minimal_bytes=error.minimal_bytes, owners=error.owners) from None
        module = _apply_plan(model, row, plan)
        peak = agree(tracked_peak(module, sample, loss=loss, passes=2 if accumulate else 1)) + elsewhere
        if peak <= budget_bytes:
            _check_exact(model, module, own, sample, loss)
            return module
        # Together the stages took more than was measured of each: plan again with that much in reserve.
        more = peak - budget_bytes
        chain = replace(
            chain,
            fixed={**chain.fixed, "reserve": chain.fixed["reserve"] + more},
            plain_peak_bytes=full_bytes(chain) + more,
        )
    raise BudgetExceeded(
        f"budget: got {format_bytes(budget_bytes)}, and a step took {format_bytes(peak)} though its plan was within "
        "it; allowed: a budget with room for what stages take that was not measured; raise it"
    )


def _check_exact(model: nn.Module, module: nn.Module, own: StepResult | None, sample: Any, loss: Loss | None) -> None:
    plan: Any = module.plan
    # A plan that runs nothing again runs the model as it is.
    if own is None or plan.solver == "none":
        return
    difference = own.difference(StepResult.of(module, model, sample, loss))
    # A model that differs from itself in two runs says nothing about its plan.
    if difference and not own.difference(StepResult.of(model, model, sample, loss)):
        raise UnsupportedModel(
            f"model: got one that does something else when a part of it runs again ({difference} differs); allowed: "
            "forwards that depend on parameters, buffers, inputs and the global random generators alone; keep what "
            "else they read or write out of them, or take a budget that needs no plan"
        )


def _apply_plan(model: nn.Module, row: StageRow, plan: Plan) -> nn.Module:
    planned = tuple(stage.name for stage in plan.chain.stages)
    if row.names != planned:
        pairs = enumerate(zip(row.names, planned, strict=False), start=1)
        place = next((place for place, (own, other) in pairs if own != other), min(len(row.names), len(planned)) + 1)
        raise PlanMismatch(
            f"plan: got one of {len(planned)} stages, the model has {len(row.names)}, and stage {place} differs first; "
            "allowed: a plan of this very model; plan again"
        )

    # What recomputes nothing and moves nothing needs no interpreter.
    acts = None if plan.solver == "none" else place_acts(plan)
    module = carry_out(model, row, acts, most_bytes=plan.chain.input_bytes)
    module.plan = plan  # type: ignore[assignment]  # nn.Module types its attributes as tensors and modules
    return module
