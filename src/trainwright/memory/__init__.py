"""Train what does not fit: rematerialisation, offloading and pipeline partitions of a chain of stages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainwright.errors import ChainError, MissingExtra, UnsupportedModel
from trainwright.model.chain import Chain, Stage
from trainwright.model.profile import Profile
from trainwright.plan.byte_sizes import read_size
from trainwright.plan.memory.operations import Link
from trainwright.plan.memory.plan_record import Plan
from trainwright.plan.memory.planning import TradeOffCurve, plan_chain, trade_off_curve
from trainwright.plan.pipeline.planning import PipelinePlan, plan_pipeline

__all__ = ["Chain", "Link", "Plan", "Stage", "apply", "curve", "fit", "measure_link", "pipeline", "plan"]


def plan(
    subject: Any,
    sample: Any = None,
    *,
    budget: str | float,
    loss: Any = None,
    optimizer: Any = None,
    accumulate: bool = False,
    stages: Sequence[str] = (),
    **settings: Any,
) -> Plan:
    """Plan a step of a model, a chain, or a chain file within a budget, with the settings of `plan_chain`.

    A model needs `sample`, and may have `loss`, `optimizer`, `accumulate` and `stages`, as in `fit`.
    """
    chain = load_chain(
        subject, sample, loss=loss, optimizer=optimizer, accumulate=accumulate, stages=stages,
        offload=bool(settings.get("offload")),
    )  # fmt: skip
    return plan_chain(chain, budget=budget, **settings)


def fit(
    model: Any,
    sample: Any,
    *,
    budget: str | float,
    loss: Any = None,
    optimizer: Any = None,
    accumulate: bool = False,
    reserve_bytes: int = 0,
    stages: Sequence[str] = (),
    **settings: Any,
) -> Any:
    """Return a `torch.nn.Module` that trains inside a budget with the least overhead found; it shares all with `model`.

    `sample` is a batch (a tuple or list holds positional, a mapping keyword arguments). The budget bounds the
    allocator's peak in forward and backward: parameters, gradients, buffers, the state of `optimizer` (torch's, or
    "sgd", "momentum", "adam", "adamw"), the batch, activations, temporaries, workspaces of kernels, and
    `reserve_bytes` of others; a float is a share of the peak without a plan. `loss` makes a scalar of the model's
    result; without it the loss's own memory is not planned. Gradients count from when they are made, as after
    `zero_grad()`; with `accumulate` they are there from the start, for passes whose gradients add up. With `offload`,
    values may wait on the host, behind a link of `bandwidth`: bytes per second, or a `Link`; on a CUDA device by
    default what `measure_link` finds. Gradients are those of the model, bit by bit, and `plan` is the module's plan.
    Stages are blocks of the model, found, or named by patterns (`stages=["model.layers.*"]`). Each kind of them is
    measured once, then one step is checked.

    Raises `InfeasibleBudget`, `BudgetExceeded`, `UnsupportedModel`.
    """
    MissingExtra.check_torch("memory.fit")
    from trainwright.train.parallel.recompute.fitting import fit as fitted

    return fitted(
        model, sample, budget=budget, loss=loss, optimizer=optimizer, accumulate=accumulate,
        reserve_bytes=reserve_bytes, stages=stages, **settings,
    )  # fmt: skip


def measure_link(device: Any = "cuda", **settings: Any) -> Link:
    """Return how fast values go from this device to the host and back, for plans with `offload`.

    Copies of `size` bytes (256 MiB) each way, alone and both at once, the best of `repeats` (5), as plans make them:
    through pinned memory, on a stream each way. Raises `BudgetError` where torch sees no such device.
    """
    from trainwright.train.parallel.recompute.copies import measure_link as measured

    return measured(device, **settings)


def apply(model: Any, plan: Plan) -> Any:
    """Return a module that trains by a plan for this model (see `fit`); raises `PlanMismatch` for another model's."""
    MissingExtra.check_torch("memory.apply")
    from trainwright.train.parallel.recompute.fitting import apply as applied

    return applied(model, plan)


def curve(subject: Any, sample: Any = None, **settings: Any) -> TradeOffCurve:
    """Return memory against time of a model, a chain or a chain file, with the settings of `trade_off_curve`."""
    return trade_off_curve(load_chain(subject, sample), **settings)


def pipeline(
    subject: Any,
    sample: Any = None,
    *,
    stages: int,
    microbatches: int,
    memory: str | int,
    loss: Any = None,
    **settings: Any,
) -> PipelinePlan:
    """Cut a chain (or that of a file or a model) into pipeline stages on devices of so much memory.

    A model needs `sample`, one micro-batch, and may have `loss`, as in `fit`. `memory` is bytes or a size such as
    "16 GiB"; the settings are those of `plan_pipeline`. The plan's `layout(batch)` is what ranks train by:
    `trial.prepare(plan=plan.layout(batch))`.
    """
    size = read_size(memory, "memory")
    chain = load_chain(subject, sample, loss=loss)
    return plan_pipeline(chain, stages=stages, microbatches=microbatches, memory_bytes=size, **settings)


def load_chain(subject: Any, sample: Any = None, **settings: Any) -> Chain:
    """Return the chain that `subject` is, that a profile or a file of that name holds, or that is measured."""
    if isinstance(subject, Chain):
        return subject
    if isinstance(subject, Profile):
        return subject.chain
    if isinstance(subject, str | Path):
        return Chain.load(subject)
    if not hasattr(subject, "named_parameters"):
        raise ChainError(
            f"memory: got {type(subject).__name__}; allowed: a torch module with a sample, a profile with seconds, a "
            "Chain, or the name of a chain file"
        )
    if sample is None:
        raise UnsupportedModel(
            f"memory, sample: got None for a model ({type(subject).__name__}); allowed: a batch that it takes"
        )
    MissingExtra.check_torch("a memory plan of a model")
    from trainwright.train.parallel.recompute.measure import measure_chain

    return measure_chain(subject, sample, **settings)
