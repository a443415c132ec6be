"""Inside a trial: reporting, epochs, devices, seeds, checkpoints."""

from trainwright.train.assignment import Assignment, Channel, TrialEnd
from trainwright.train.loader import Loader
from trainwright.train.optuna import ObjectiveTrial, OptunaObjective, from_optuna
from trainwright.train.parallelise import parallelise
from trainwright.train.run import Run
from trainwright.train.seeding import seed_all
from trainwright.train.slots import Slots
from trainwright.train.trial import Trial, as_number

__all__ = [
    "Assignment",
    "Channel",
    "Loader",
    "ObjectiveTrial",
    "OptunaObjective",
    "Run",
    "Slots",
    "Trial",
    "TrialEnd",
    "as_number",
    "from_optuna",
    "parallelise",
    "seed_all",
]
