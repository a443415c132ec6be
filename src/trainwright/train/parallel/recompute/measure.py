"""Measures the memory and time of a model's stages as a chain, in one step of the model as it is.

Where the forward calls a stage, the stage is measured alone, forward and backward, with every storage counted; stages
of one kind that are called alike are measured once (see `skeleton_step`). What follows the last stage, with the loss,
is the chain's loss stage; what lies between stages is kept, and fixed.

Bytes are those of live storages (not of the process), rounded as the allocator does; seconds are the least of several
runs. Afterwards parameters, buffers, gradients, random generators and the training mode are as before.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trainwright.errors import UnsupportedModel
from trainwright.model.chain import NOT_ALL_AT_ONCE, Chain, Option, Stage, with_least_peaks
from trainwright.model.trace.step import as_call
from trainwright.plan.parallel.precision import optimizer_of
from trainwright.train.parallel.recompute.measured_stage import StageBytes
from trainwright.train.parallel.recompute.optimizer_state import state_bytes
from trainwright.train.parallel.recompute.run_context import keep_freed_pages
from trainwright.train.parallel.recompute.sample_step import accepted_sample, restored_after, tracked_peak
from trainwright.train.parallel.recompute.skeleton_step import SkeletonStep, StagesChangedError
from trainwright.train.parallel.recompute.stage_calls import check_trains, find_stages
from trainwright.train.parallel.recompute.trees import CUDA_GRANULE, granule_of, tensors_of, total_bytes

__all__ = ["measure_chain"]


def measure_chain(
    model: nn.Module,
    sample: Any,
    *,
    stages: Sequence[str] = (),
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Optimizer | str | None = None,
    accumulate: bool = False,
    reserve_bytes: int = 0,
    offload: bool = False,
) -> Chain:
    """Return the chain of a model's stages for a sample, in the order of the calls.

    `stages` name the stages, as `find_stages` takes them; `loss` makes a scalar of the model's result. `optimizer` is
    torch's, or its name (see `optimizer_of`). Gradients of parameters count from the backward that
    makes them, as after `zero_grad(set_to_none=True)`; with `accumulate` they are there from the start, and a stage's
    new ones come on top. `reserve_bytes` are somebody else's; `offload` is for plans with copies to the host. Modules
    that cannot run again with the same result are no stages; a model of none is one, with nothing to run again. Raises
    `UnsupportedModel` if nothing is trained, or the model does not take the sample.
    """
    check_trains(model)
    granule = granule_of(model)
    if granule < CUDA_GRANULE:
        keep_freed_pages()  # as in the steps that are planned
    fixed = {
        "parameters": total_bytes(model.parameters(), granule),
        "buffers": total_bytes(model.buffers(), granule),
        "reserve": reserve_bytes,
    }
    gradients = total_bytes((each for each in model.parameters() if each.requires_grad), granule)
    if not gradients:
        raise UnsupportedModel(
            "model: got no parameter that wants a gradient; allowed: at least one, for a plan to serve"
        )
    if accumulate:
        fixed["gradients"] = gradients
    if optimizer is not None:
        fixed["optimizer"] = (
            state_bytes(optimizer, granule=granule)
            if isinstance(optimizer, Optimizer)
            else int(optimizer_of(optimizer).numbers * gradients)
        )
    call = as_call(sample)
    batch = tensors_of((call.args, dict(call.kwargs)))
    unfit: dict[Any, str] = {}
    known: dict[Any, Any] = {}
    step = None
    # Until all stages of a step can run again.
    while step is None:
        tried = SkeletonStep(model, granule, find_stages(model, stages), unfit, known)
        with restored_after(model, batch), suppress(StagesChangedError):
            tried.run(call, loss)
            step = tried
    left_out = step.add_left_out()
    if not step.calls:
        return _whole_chain(model, sample, loss, fixed, total_bytes(batch, granule), accumulate=accumulate)
    between = max(each.entry_bytes for each in step.calls)
    counted_stages = _stages_of(step, between, accumulate=accumulate, offload=offload)
    # The states of generators, for reruns.
    states = step.draws * (-(-torch.get_rng_state().nbytes // granule) * granule) if granule < CUDA_GRANULE else 0
    fixed["buffers"] += sum(each.taken.written_bytes for each in step.calls)  # reruns need what a step began with
    fixed |= {"between stages": between, "executor": 4 * granule, "random states": states}
    if left_out:
        fixed[NOT_ALL_AT_ONCE] = 0  # what a step of the sample has left over belongs to stages that others call
    return Chain(
        stages=tuple(counted_stages[:-1]),
        loss=counted_stages[-1],
        input_bytes=total_bytes(batch, granule),
        fixed=fixed,
        name=type(model).__name__,
    )


def _stages_of(step: SkeletonStep, between: int, *, accumulate: bool, offload: bool) -> list[Stage]:
    """Return the records of the stages in the order of the calls, and that of the loss, from what was seen beside.

    `between` is the most that lies beside the stages in the forward pass, which is fixed. What is there when a stage's
    backward begins may be less, as what skips stages has been read, or more, as gradients wait for others: the stage
    behind is taken to free it, or to make it, with the gradients of its parameters. With `offload` all of it stays, for
    what several read never leaves the device, and may outlive the others.
    """
    calls, granule = step.calls, step.granule
    # Of parameters that are in no stage. Where gradients add up, all are there from the start, and new ones temporary.
    made = total_bytes(calls[-1].gradients, granule)
    saved = max(0, step.loss_bytes - between)
    later = {*map(id, calls[-1].gradients)}

    def beside(count: int) -> int:
        """Return bytes beside the stages without what is fixed."""
        return count - between - (made if accumulate else 0)

    found: list[Stage] = []
    taken: list[StageBytes | None] = [None]
    before = 0
    for place in range(len(calls) - 1, -1, -1):
        call, linked = calls[place], calls[place - 1].linked_bytes if place else None
        below = calls[place - 1].taken.gradient_bytes if place else 0
        fields = call.taken.fields(call.linked_bytes)
        # Before its forward, what lies between it and the stage before may take more than the stage.
        entering = call.entry_peak_bytes - between - (linked or 0) - fields["output_bytes"]
        for name in ("forward_temporary_bytes", "no_grad_forward_temporary_bytes"):
            fields[name] = max(fields[name], entering)
        if found:
            made += total_bytes(call.gradients, granule)
        # What the step has beside the stages when it comes to this one's backward, and had at most on its way there.
        there, peak = beside(call.backward_bytes), beside(call.backward_peak_bytes)
        level = there + call.held_bytes
        if offload:
            level = 0 if accumulate else made
        if not found:
            found.append(
                Stage(
                    name="loss",
                    forward_seconds=step.loss_seconds[0],
                    backward_seconds=step.loss_seconds[1],
                    output_bytes=0,
                    gradient_bytes=0,
                    saved_bytes=saved,
                    forward_temporary_bytes=max(0, step.loss_peak_bytes - between - saved),
                    backward_temporary_bytes=peak - saved - fields["gradient_bytes"] - level,
                    parameter_gradient_bytes=level,
                )
            )
            peak = level
        else:
            behind = found[-1]
            found[-1] = replace(
                behind,
                parameter_gradient_bytes=behind.parameter_gradient_bytes + level - before,
                backward_temporary_bytes=behind.backward_temporary_bytes - level + before,
            )
        before = level
        own = {id(each): each for module in call.site.modules for each in module.parameters() if each.requires_grad}
        shared = total_bytes((each for key, each in own.items() if key in later), granule)
        alone = total_bytes((each for key, each in own.items() if key not in later), granule)
        temporary = fields["backward_temporary_bytes"] - below
        # Gradients of shared parameters are added to what is there.
        if accumulate:
            temporary, alone = max(temporary, 0) + shared + alone, 0
        elif shared:
            temporary = max(temporary + shared, 2 * shared)
        # What it was given goes when its backward begins; on the way there, what lies behind it may take more.
        temporary = max(temporary + there - level, peak - level - fields["gradient_bytes"] - below)
        if place == 0:
            # What follows the first stage's backward finds its saved values gone.
            end = beside(step.end_peak_bytes) - level - fields["saved_bytes"] - fields["gradient_bytes"]
            more = 0 if accumulate else total_bytes(step.end_gradients, granule)
            temporary, alone = max(temporary, end) - more, alone + more
        fields |= {"backward_temporary_bytes": temporary, "parameter_gradient_bytes": alone}
        # What lies before a stage goes with it where a pipeline places parameters.
        extra = [*call.gradients, *(step.end_gradients if place == 0 else ())]
        parameters = [*(each for module in call.site.modules for each in module.parameters()), *extra]
        stage = Stage(name=call.site.name, parameter_bytes=total_bytes(parameters, granule), **fields)
        found.append(stage)
        taken.append(None if offload else call.taken)
        later |= {*own, *map(id, call.gradients)}
    least = with_least_peaks(found[::-1])
    pairs = zip(least, taken[::-1], strict=True)
    return [stage if each is None else replace(stage, options=_options_of(stage, each)) for stage, each in pairs]


def _options_of(stage: Stage, taken: StageBytes) -> tuple[Option, ...]:
    """Return ways to run a stage that keep less; at most all that it saves is there again in its backward."""
    found = []
    for each in taken.selective:
        saved = max(stage.output_bytes, stage.saved_bytes - each.freed_bytes)
        freed = stage.saved_bytes - saved
        found.append(
            Option(
                name=f"{len(each.remade)} operations again",
                forward_seconds=stage.forward_seconds + each.forward_seconds,
                backward_seconds=stage.backward_seconds + each.backward_seconds,
                saved_bytes=saved,
                forward_temporary_bytes=stage.forward_temporary_bytes + freed + taken.buffer_bytes,
                backward_temporary_bytes=stage.backward_temporary_bytes + freed + each.extra_bytes,
                remade=each.remade,
            )
        )
    return tuple(found)


def _whole_chain(
    model: nn.Module,
    sample: Any,
    loss: Callable[[Any], torch.Tensor] | None,
    fixed: dict[str, int],
    input_bytes: int,
    *,
    accumulate: bool,
) -> Chain:
    """Return a model with nothing to run again as one stage, of which only the peak of a step matters."""
    started = time.perf_counter()
    # The gradients that are there from the start when they add up are in the peak of two passes.
    with accepted_sample(model):
        peak = tracked_peak(model, sample, loss=loss, passes=2 if accumulate else 1)
    seconds = (time.perf_counter() - started) / (2 if accumulate else 1)
    peak += fixed.get("optimizer", 0) + fixed["reserve"]
    saved = max(0, peak - sum(fixed.values()) - input_bytes)
    stage = Stage(
        name="",
        forward_seconds=seconds / 3,
        backward_seconds=2 * seconds / 3,
        output_bytes=0,
        saved_bytes=saved,
        parameter_bytes=fixed["parameters"],
    )
    return Chain(
        stages=(stage,), input_bytes=input_bytes, fixed=fixed, name=type(model).__name__, plain_peak_bytes=peak
    )
