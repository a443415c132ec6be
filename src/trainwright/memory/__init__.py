"""Train what does not fit: rematerialisation, offloading and pipeline partitions of a chain of stages."""

from typing import Any

from trainwright.memory.budget import read_budget
from trainwright.memory.chain import Chain, Option, Stage
from trainwright.memory.link import Link
from trainwright.memory.operations import Kind, Operation, Value
from trainwright.memory.pareto import Curve, CurvePoint, curve_of
from trainwright.memory.pipelines.planning import PipelinePlan, plan_pipeline
from trainwright.memory.plan_record import Plan
from trainwright.memory.planning import plan_chain
from trainwright.memory.simulate import Simulation, simulate
from trainwright.memory.subject import as_chain, read_chain

__all__ = [
    "Chain",
    "Curve",
    "CurvePoint",
    "Kind",
    "Link",
    "Operation",
    "Option",
    "PipelinePlan",
    "Plan",
    "Simulation",
    "Stage",
    "Value",
    "curve",
    "pipeline",
    "plan",
    "read_chain",
    "simulate",
]


def plan(subject: Any, *, budget: str | float, **settings: Any) -> Plan:
    """Plan a step of a chain (or of a chain or graph file) within a budget, with the settings of `plan_chain`."""
    return plan_chain(as_chain(subject), budget=budget, **settings)


def curve(subject: Any, **settings: Any) -> Curve:
    """Return memory against time of a chain (or of a chain or graph file), with the settings of `curve_of`."""
    return curve_of(as_chain(subject), **settings)


def pipeline(subject: Any, *, stages: int, microbatches: int, memory: str | int, **settings: Any) -> PipelinePlan:
    """Cut a chain (or that of a file) into pipeline stages on devices of so much memory, as `plan_pipeline` does.

    `memory` is bytes or a size such as "16 GiB".
    """
    size = read_budget(memory, 0)
    return plan_pipeline(as_chain(subject), stages=stages, microbatches=microbatches, memory_bytes=size, **settings)
