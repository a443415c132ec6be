"""Save and resume: a trial's checkpoints, atomic and checked."""

from trainwright.checkpoint.config import CheckpointConfig, Retention, Screen
from trainwright.checkpoint.differences import Difference, Effect
from trainwright.checkpoint.manager import Manager
from trainwright.checkpoint.manifest import FileRecord, Manifest, ShardRecord, TensorRecord
from trainwright.checkpoint.owner import DirectoryOwner, Owner
from trainwright.checkpoint.publish import Published
from trainwright.checkpoint.restoring import Restored
from trainwright.checkpoint.rng import capture_random, restore_random
from trainwright.checkpoint.saving import SaveHandle, SaveRecord
from trainwright.checkpoint.store import CheckpointStore, Saved

__all__ = [
    "CheckpointConfig",
    "CheckpointStore",
    "Difference",
    "DirectoryOwner",
    "Effect",
    "FileRecord",
    "Manager",
    "Manifest",
    "Owner",
    "Published",
    "Restored",
    "Retention",
    "SaveHandle",
    "SaveRecord",
    "Saved",
    "Screen",
    "ShardRecord",
    "TensorRecord",
    "capture_random",
    "restore_random",
]
