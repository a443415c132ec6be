"""What a plan does with each stage."""

from collections import Counter
from dataclasses import dataclass

from trainwright.plan.memory.operations import OperationKind
from trainwright.plan.memory.plan_record import Plan

__all__ = ["StageReport", "explain_plan"]

_FORWARDS = {OperationKind.FORWARD_ALL, OperationKind.FORWARD_KEEP, OperationKind.FORWARD_DROP}


@dataclass(frozen=True, kw_only=True, slots=True)
class StageReport:
    """One stage of a plan."""

    stage: int
    name: str
    fate: str
    """"kept" (saved at its first forward), "recomputed", and "offloaded" where a value of it waits on the host."""
    forwards: int
    option: str
    """How it is saved in the end."""
    saved_bytes: int
    """Bytes that are not held between its first forward and its backward."""
    paid_seconds: float
    """Seconds of its forwards but one, and what its option takes more than the stage's own."""


def explain_plan(plan: Plan) -> tuple[StageReport, ...]:
    """Return what a plan does with each stage, the loss stage last."""
    first: dict[int, OperationKind] = {}
    runs: Counter[int] = Counter()
    options: dict[int, int] = {}
    away = {operation.stage for operation in plan.operations if operation.kind is OperationKind.OFFLOAD}
    times: dict[int, float] = {}
    for operation in plan.operations:
        stage = operation.stage
        step = plan.chain.steps[stage - 1]
        if operation.kind in _FORWARDS:
            first.setdefault(stage, operation.kind)
            runs[stage] += 1
            saves = operation.kind is OperationKind.FORWARD_ALL
            times[stage] = times.get(stage, 0.0) + (
                step.choices[operation.option].forward_seconds if saves else step.no_grad_seconds
            )
            if saves:
                options[stage] = operation.option
        elif operation.kind is OperationKind.BACKWARD:
            times[stage] = times.get(stage, 0.0) + step.choices[options[stage]].backward_seconds
    reports = []
    for stage, step in enumerate(plan.chain.steps, start=1):
        option = step.choices[options[stage]]
        kept = first[stage] is OperationKind.FORWARD_ALL and runs[stage] == 1
        fate = "kept" if kept else "recomputed"
        held = option.saved_bytes if kept and stage not in away else 0
        reports.append(
            StageReport(
                stage=stage,
                name=step.name,
                fate=f"{fate}, offloaded" if stage in away else fate,
                forwards=runs[stage],
                option=option.name,
                saved_bytes=step.saved_bytes - held,
                paid_seconds=times[stage] - step.forward_seconds - step.backward_seconds,
            )
        )
    return tuple(reports)
