"""Save and resume: a trial's checkpoints, atomic and checked."""

from trainwright.checkpoint.differences import Difference, Effect
from trainwright.checkpoint.rng import capture_random, restore_random
from trainwright.checkpoint.store import CheckpointStore, Saved

__all__ = ["CheckpointStore", "Difference", "Effect", "Saved", "capture_random", "restore_random"]
