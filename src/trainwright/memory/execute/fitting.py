"""Fitting a model into a budget: stages, their chain, a plan, the module that follows it, and one checked step."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trainwright.errors import BudgetExceeded, PlanMismatch
from trainwright.memory.budget import read_budget, readable
from trainwright.memory.chain import Chain
from trainwright.memory.execute.copies import measure_link
from trainwright.memory.execute.counted import tensors_of, total_bytes
from trainwright.memory.execute.interpreter import carried_out
from trainwright.memory.execute.measure import call, granule_of, measured, tracked_peak
from trainwright.memory.execute.optimizers import state_bytes
from trainwright.memory.execute.program import placed
from trainwright.memory.execute.stages import Row, split
from trainwright.memory.plan_record import Plan
from trainwright.memory.planning import full_bytes, plan_chain

__all__ = ["apply", "chain_of", "fit"]

_TRIES = 3
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
    """Return the measured chain of a model; the arguments are those of `fit`, and `skips` that of `split`."""
    row = split(model, skips=skips)
    state = state_bytes(optimizer, granule=granule_of(model)) if isinstance(optimizer, Optimizer) else optimizer
    chain = measured(
        model, row, call(row.bind, sample), loss=loss, optimizer=state, accumulate=accumulate,
        reserve_bytes=reserve_bytes,
    )  # fmt: skip
    peak = tracked_peak(model, sample, loss=loss, passes=2 if accumulate else 1)
    return replace(chain, plain_peak_bytes=peak + chain.fixed.get("optimizer", 0) + reserve_bytes)


def apply(model: nn.Module, plan: Plan) -> nn.Module:
    """Return a module that trains as a plan says; raise PlanMismatch if the plan was made for other stages."""
    return _applied(model, split(model), plan)


def fit(
    model: nn.Module,
    sample: Any,
    *,
    budget: str | float,
    loss: Loss | None = None,
    optimizer: Optimizer | str | None = None,
    accumulate: bool = False,
    reserve_bytes: int = 0,
    **settings: Any,
) -> nn.Module:
    """Return a module that trains inside `budget` with the least overhead found; see `trainwright.memory.fit`."""
    row = split(model)
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    if settings.get("offload") and settings.get("bandwidth") is None and device.type == "cuda":
        settings["bandwidth"] = measure_link(device)
    chain = chain_of(model, sample, loss=loss, optimizer=optimizer, accumulate=accumulate, reserve_bytes=reserve_bytes)
    budget_bytes, peak = read_budget(budget, full_bytes(chain)), 0
    elsewhere = chain.fixed.get("optimizer", 0) + reserve_bytes  # not seen in a step of the model
    for _ in range(_TRIES):
        plan = plan_chain(chain, budget=budget_bytes, **settings)
        module = _applied(model, row, plan)
        peak = tracked_peak(module, sample, loss=loss, passes=2 if accumulate else 1) + elsewhere
        if peak <= budget_bytes:
            return module
        more = peak - budget_bytes
        chain = replace(
            chain,
            fixed={**chain.fixed, "reserve": chain.fixed["reserve"] + more},
            plain_peak_bytes=full_bytes(chain) + more,
        )
    raise BudgetExceeded(
        f"budget: got {readable(budget_bytes)}, and a step took {readable(peak)} though its plan was within it; "
        "allowed: a budget with room for what stages take that was not measured; raise it"
    )


def _applied(model: nn.Module, row: Row, plan: Plan) -> nn.Module:
    planned = tuple(stage.name for stage in plan.chain.stages)
    if row.names != planned:
        pairs = enumerate(zip(row.names, planned, strict=False), start=1)
        place = next((place for place, (own, other) in pairs if own != other), min(len(row.names), len(planned)) + 1)
        raise PlanMismatch(
            f"plan: got one of {len(planned)} stages, the model has {len(row.names)}, and stage {place} differs first; "
            "allowed: a plan of this very model; plan again"
        )

    def check(values: tuple[Any, ...]) -> None:
        size = total_bytes(tensors_of(values), granule)
        if size > plan.chain.input_bytes:
            raise BudgetExceeded(
                f"batch: got {readable(size)}, the plan is for at most {readable(plan.chain.input_bytes)}; allowed: "
                "batches no larger than the sample; fit or plan again with a larger one"
            )

    granule = granule_of(model)
    # What recomputes nothing and moves nothing needs no interpreter.
    module = carried_out(model, row, None if plan.solver == "none" else placed(plan), check=check)
    module.plan = plan  # type: ignore[assignment]  # nn.Module types its attributes as tensors and modules
    return module
