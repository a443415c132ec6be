"""Engines start, watch and end trials on devices; they choose neither trials nor sizes."""

from trainwright.engine.admission import AdmissionControl
from trainwright.engine.function_reference import (
    FunctionReference,
    load_function,
    load_module,
    load_reference,
    script_boundary,
)
from trainwright.engine.launcher import local_rank, local_size, rank
from trainwright.engine.local import Local
from trainwright.engine.protocol import (
    Block,
    Died,
    Engine,
    Handler,
    Outcome,
    Raised,
    Returned,
    StoppedEarly,
    TrainFunction,
)

__all__ = [
    "AdmissionControl",
    "Block",
    "Died",
    "Engine",
    "FunctionReference",
    "Handler",
    "Local",
    "Outcome",
    "Raised",
    "Returned",
    "StoppedEarly",
    "TrainFunction",
    "load_function",
    "load_module",
    "load_reference",
    "local_rank",
    "local_size",
    "rank",
    "script_boundary",
]
