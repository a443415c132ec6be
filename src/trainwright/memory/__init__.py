"""Train what does not fit: rematerialisation, offloading and pipeline partitions of a chain of stages."""

from typing import Any

from trainwright.memory.chain import Chain, Option, Stage
from trainwright.memory.link import Link
from trainwright.memory.operations import Kind, Operation, Value
from trainwright.memory.pareto import Curve, CurvePoint, curve_of
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
    "Plan",
    "Simulation",
    "Stage",
    "Value",
    "curve",
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
