"""Save and resume: a trial's checkpoints, atomic and checked."""

from trainwright.checkpoint.config import CheckpointConfig, Retention, Screen
from trainwright.checkpoint.differences import Difference, Effect
from trainwright.checkpoint.manager import Manager
from trainwright.checkpoint.manifest import FileRecord, Manifest, ShardRecord, TensorRecord
from trainwright.checkpoint.owner import DirectoryOwner, HasCheckpoints, Owner, Saves
from trainwright.checkpoint.publish import Published
from trainwright.checkpoint.restoring import Restored
from trainwright.checkpoint.rng import capture_random, restore_random
from trainwright.checkpoint.saving import SaveHandle, SaveRecord

__all__ = [
    "CheckpointConfig",
    "Difference",
    "DirectoryOwner",
    "Effect",
    "FileRecord",
    "HasCheckpoints",
    "Manager",
    "Manifest",
    "Owner",
    "Published",
    "Restored",
    "Retention",
    "SaveHandle",
    "SaveRecord",
    "Saves",
    "Screen",
    "ShardRecord",
    "TensorRecord",
    "capture_random",
    "restore_random",
]
