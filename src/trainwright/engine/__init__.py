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
from trainwright.engine._function import FunctionReference, load_function, script_boundary
from trainwright.engine.in_process import InProcess
from trainwright.engine.local import Local

__all__ = [
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
    "TrainFunction",
    "load_function",
    "script_boundary",
]
