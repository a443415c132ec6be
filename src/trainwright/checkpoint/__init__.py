"""Save and resume: a trial's checkpoints, atomic and checked."""

from trainwright.checkpoint.config import CheckpointConfig, Retention, Screen
from trainwright.checkpoint.convert import Conversion, convert
from trainwright.checkpoint.diff import ChangedTensor, Diff, DifferentTensor, diff
from trainwright.checkpoint.differences import Difference, Effect
from trainwright.checkpoint.formats import (
    FORMATS,
    Capabilities,
    Dcp,
    Format,
    Hdf5,
    Npz,
    SafeTensors,
    Stored,
    TensorInfo,
    TorchZip,
    format_named,
    format_of,
)
from trainwright.checkpoint.inspect import Inspected, Inspection, inspect
from trainwright.checkpoint.manager import Manager
from trainwright.checkpoint.manifest import FileRecord, Manifest, ShardRecord, TensorRecord
from trainwright.checkpoint.owner import DirectoryOwner, HasCheckpoints, Owner, Saves
from trainwright.checkpoint.publish import Published
from trainwright.checkpoint.restoring import Restored
from trainwright.checkpoint.rng import capture_random, restore_random
from trainwright.checkpoint.saving import SaveHandle, SaveRecord
from trainwright.checkpoint.sources import Source, open_source
from trainwright.checkpoint.verify import Verification, Verified, verify

__all__ = [
    "FORMATS",
    "Capabilities",
    "ChangedTensor",
    "CheckpointConfig",
    "Conversion",
    "Dcp",
    "Diff",
    "Difference",
    "DifferentTensor",
    "DirectoryOwner",
    "Effect",
    "FileRecord",
    "Format",
    "HasCheckpoints",
    "Hdf5",
    "Inspected",
    "Inspection",
    "Manager",
    "Manifest",
    "Npz",
    "Owner",
    "Published",
    "Restored",
    "Retention",
    "SafeTensors",
    "SaveHandle",
    "SaveRecord",
    "Saves",
    "Screen",
    "ShardRecord",
    "Source",
    "Stored",
    "TensorInfo",
    "TensorRecord",
    "TorchZip",
    "Verification",
    "Verified",
    "capture_random",
    "convert",
    "diff",
    "format_named",
    "format_of",
    "inspect",
    "open_source",
    "restore_random",
    "verify",
]
