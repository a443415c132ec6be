"""Where trials run: engines start, watch and end them, and choose nothing."""

from trainwright.engine._engine import (
    Block,
    Died,
    Engine,
    Handler,
    Outcome,
    Quiet,
    Raised,
    Returned,
    TrainFunction,
)
from trainwright.engine._function import IN_WORKER, FunctionReference, ScriptBoundary, load_function
from trainwright.engine.in_process import InProcess
from trainwright.engine.local import Local

__all__ = [
    "IN_WORKER",
    "Block",
    "Died",
    "Engine",
    "FunctionReference",
    "Handler",
    "InProcess",
    "Local",
    "Outcome",
    "Quiet",
    "Raised",
    "Returned",
    "ScriptBoundary",
    "TrainFunction",
    "load_function",
]
