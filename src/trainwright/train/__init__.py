"""Inside a trial: reporting, epochs, devices, seeds, checkpoints."""

from trainwright.randomness import seed_all
from trainwright.train.assignment import TrialEnd
from trainwright.train.loader import Loader
from trainwright.train.optuna import from_optuna
from trainwright.train.run import Run, parallelise
from trainwright.train.slots import Slots
from trainwright.train.trial import Trial

__all__ = [
    "Loader",
    "Run",
    "Slots",
    "Trial",
    "TrialEnd",
    "from_optuna",
    "parallelise",
    "seed_all",
]
