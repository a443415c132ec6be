"""The simulated engine: a virtual clock under the same rules, policies and searchers."""

from trainwright.engine.simulated.config import Simulated
from trainwright.engine.simulated.limits import Limits
from trainwright.engine.simulated.record import Held, Run, Stall
from trainwright.engine.simulated.scaling import Scaling
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.table import Table, tables
from trainwright.engine.simulated.task import Course, Courses, Parametric, Task

__all__ = [
    "Course",
    "Courses",
    "Held",
    "Limits",
    "Parametric",
    "Run",
    "Scaling",
    "Simulated",
    "Stall",
    "Table",
    "Task",
    "simulate",
    "tables",
]
