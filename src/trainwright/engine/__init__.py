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
from trainwright.engine._function import FunctionReference, load_function, load_module, load_reference, script_boundary
from trainwright.engine.in_process import InProcess
from trainwright.engine.launcher import local_rank, local_size, rank
from trainwright.engine.local import Local
from trainwright.engine.vetted import Vetted

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
    "Vetted",
    "load_function",
    "load_module",
    "load_reference",
    "local_rank",
    "local_size",
    "rank",
    "script_boundary",
]
