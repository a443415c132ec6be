"""Engines start, watch and end trials on devices; they choose neither trials nor sizes."""

from trainwright.engine.admission import AdmissionControl
from trainwright.engine.local import Local
from trainwright.engine.protocol import (
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
    "Died",
    "Engine",
    "Handler",
    "Local",
    "Outcome",
    "Raised",
    "Returned",
    "StoppedEarly",
    "TrainFunction",
]
