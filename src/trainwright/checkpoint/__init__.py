"""Save and resume: a trial's checkpoints, atomic and checked."""

from trainwright.checkpoint.bench import Bench, bench
from trainwright.checkpoint.config import CheckpointConfig, Retention, Screen, Tier
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
from trainwright.checkpoint.hooks import CommandHook, Hook, SlurmRequeue
from trainwright.checkpoint.inspect import Inspected, Inspection, inspect
from trainwright.checkpoint.interval import Costs, Estimate, LossRate, SavePlan, estimates, plan_saves
from trainwright.checkpoint.manager import Manager
from trainwright.checkpoint.manifest import FileRecord, Manifest, ShardRecord, TensorRecord
from trainwright.checkpoint.owner import DirectoryOwner, HasCheckpoints, Owner, Saves
from trainwright.checkpoint.proof import Proof, verify_resume
from trainwright.checkpoint.publish import Published
from trainwright.checkpoint.restoring import Restored
from trainwright.checkpoint.rng import capture_random, restore_random
from trainwright.checkpoint.saving import SaveHandle, SaveRecord
from trainwright.checkpoint.sources import Source, open_source
from trainwright.checkpoint.verify import Verification, Verified, verify

__all__ = [
    "FORMATS",
    "Bench",
    "Capabilities",
    "ChangedTensor",
    "CheckpointConfig",
    "CommandHook",
    "Conversion",
    "Costs",
    "Dcp",
    "Diff",
    "Difference",
    "DifferentTensor",
    "DirectoryOwner",
    "Effect",
    "Estimate",
    "FileRecord",
    "Format",
    "HasCheckpoints",
    "Hdf5",
    "Hook",
    "Inspected",
    "Inspection",
    "LossRate",
    "Manager",
    "Manifest",
    "Npz",
    "Owner",
    "Proof",
    "Published",
    "Restored",
    "Retention",
    "SafeTensors",
    "SaveHandle",
    "SavePlan",
    "SaveRecord",
    "Saves",
    "Screen",
    "ShardRecord",
    "SlurmRequeue",
    "Source",
    "Stored",
    "TensorInfo",
    "TensorRecord",
    "Tier",
    "TorchZip",
    "Verification",
    "Verified",
    "bench",
    "capture_random",
    "convert",
    "diff",
    "estimates",
    "format_named",
    "format_of",
    "inspect",
    "open_source",
    "plan_saves",
    "restore_random",
    "verify",
    "verify_resume",
]
