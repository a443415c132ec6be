"""Where trials run: engines start, watch and end them, and choose nothing."""

from trainwright.engine.admission import Vetted
from trainwright.engine.function_reference import (
    FunctionReference,
    load_function,
    load_module,
    load_reference,
    script_boundary,
)
from trainwright.engine.launcher import local_rank, local_size, rank
from trainwright.engine.local import Local
from trainwright.engine.process.in_process import InProcess
from trainwright.engine.protocol import (
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
