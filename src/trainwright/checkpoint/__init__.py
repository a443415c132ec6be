"""Save and resume: a trial's checkpoints, atomic and checked."""

from trainwright.checkpoint.store import CheckpointStore, Saved

__all__ = ["CheckpointStore", "Saved"]
