"""Fits a model into a memory budget: measures its chain, makes a plan, applies it, and checks one step."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trainwright.errors import BudgetExceeded, InfeasibleBudget
from trainwright.model.chain import NOT_ALL_AT_ONCE
from trainwright.plan.byte_sizes import format_bytes, read_budget
from trainwright.plan.memory.known_plans import keep_all
from trainwright.plan.memory.plan_record import Plan
from trainwright.plan.memory.planning import full_bytes, infeasible_budget, plan_chain
from trainwright.train.parallel.recompute.copies import measure_link
from trainwright.train.parallel.recompute.entry import carry_out
from trainwright.train.parallel.recompute.gathered import fixed_bytes, parameters_gathered
from trainwright.train.parallel.recompute.measure import measure_chain
from trainwright.train.parallel.recompute.program import FORWARDS, place_acts, remade_operations
from trainwright.train.parallel.recompute.sample_step import tracked_peak

__all__ = ["apply", "fit"]

_TRIES = 10
_WORTH = 0.995
"""Of the seconds of a plan that keeps to the budget: another is tried if it takes less than that share."""
Loss = Callable[[Any], torch.Tensor]


def apply(model: nn.Module, plan: Plan) -> nn.Module:
    """Return a module that trains as a plan says; raise PlanMismatch if the plan was made for other stages."""
    names = tuple(stage.name for stage in plan.chain.stages)
    # What recomputes nothing and moves nothing needs no interpreter.
    acts = None if plan.solver == "none" else place_acts(plan)
    remade = remade_operations(plan.chain)
    module = carry_out(model, names, acts, remade=remade, most_bytes=plan.chain.input_bytes)
    module.plan = plan  # type: ignore[assignment]  # nn.Module types its attributes as tensors and modules
    return module


def fit(
    model: nn.Module,
    sample: Any,
    *,
    budget: str | float,
    loss: Loss | None = None,
    optimizer: Optimizer | str | None = None,
    accumulate: bool = False,
    reserve_bytes: int = 0,
    stages: Sequence[str] = (),
    agree: Callable[[Any], Any] = lambda value: value,
    sharded: nn.Module | None = None,
    **settings: Any,
) -> nn.Module:
    """Return a module that trains inside `budget` with the least overhead found; see `trainwright.memory.fit`.

    `agree` makes what ranks have measured one value, where all are to plan the same. `sharded` is the module of which
    `model` is a copy, if FSDP divides that.
    """
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    if settings.get("offload") and settings.get("bandwidth") is None and device.type == "cuda":
        settings["bandwidth"] = measure_link(device)
    with parameters_gathered(sharded or model):
        own = measure_chain(
            model, sample, loss=loss, optimizer=optimizer, accumulate=accumulate, reserve_bytes=reserve_bytes,
            stages=stages, offload=bool(settings.get("offload")),
        )  # fmt: skip
    chain = agree(replace(own, fixed={**own.fixed, **fixed_bytes(sharded or model)}))
    budget_bytes, peak = read_budget(budget, full_bytes(chain)), 0
    tried_bytes = budget_bytes
    elsewhere = chain.fixed.get("optimizer", 0) + reserve_bytes  # not seen in a step of the model
    # What a search gains is a share of a step: two searches are not to outlast one.
    settings.setdefault("search_seconds", chain.plain_seconds / 2)
    found: Any = None
    for _ in range(_TRIES):
        try:
            plan = plan_chain(chain, budget=tried_bytes, **settings)
        except InfeasibleBudget as error:
            # What a refusal names as the least has to be enough: a step says whether it is.
            tried_bytes = error.minimal_bytes
            plan = plan_chain(chain, budget=tried_bytes, **settings)
        if found is not None and plan.seconds > _WORTH * found.plan.seconds:
            break
        module = apply(model, plan)
        peak = agree(tracked_peak(module, sample, loss=loss, passes=2 if accumulate else 1))
        peak += elsewhere + _random_state_bytes(plan)
        less = peak - plan.peak_bytes
        if peak <= budget_bytes and (found is not None or less >= 0 or NOT_ALL_AT_ONCE in chain.fixed):
            if less > 0 and plan.solver != "none":
                # What stages took together beyond what was measured of each is in the plan's peak as well.
                seen = replace(chain, fixed={**chain.fixed, "reserve": chain.fixed["reserve"] + less})
                module.plan = replace(plan, chain=seen, peak_bytes=peak, budget_bytes=budget_bytes)  # type: ignore[assignment]
            return module
        if found is not None:
            break
        if peak <= budget_bytes:
            # The parts of a step were not all there at its peak: what it has left over may make a faster plan.
            found, tried_bytes = module, budget_bytes
            chain = replace(chain, fixed={**chain.fixed, NOT_ALL_AT_ONCE: less})
        elif peak <= tried_bytes:
            # Another plan of the least budget may take more, as the clock chooses it; the plain step does not.
            enough = peak if plan.operations == keep_all(chain) else None
            raise infeasible_budget(chain, budget_bytes, copies=bool(settings.get("offload")), enough_bytes=enough)
        else:
            # Together the stages took more than was measured of each: plan again with that much in reserve.
            more = peak - tried_bytes
            chain = replace(chain, fixed={**chain.fixed, "reserve": chain.fixed["reserve"] + more})
    if found is not None:
        return found  # type: ignore[no-any-return]  # a module, with its plan
    raise BudgetExceeded(
        f"budget: got {format_bytes(budget_bytes)}, and a step took {format_bytes(peak)} though its plan was within "
        "it; allowed: a budget with room for what stages take that was not measured; raise it"
    )


def _random_state_bytes(plan: Plan) -> int:
    """Return what is kept of random generators for the stages that run again, which no tracker of tensors sees."""
    runs = Counter(operation.stage for operation in plan.operations if operation.kind in FORWARDS)
    again = sum(times > 1 for times in runs.values())
    return min(again * torch.get_rng_state().nbytes, plan.chain.fixed.get("random states", 0))
