"""Checkpoints: asynchronous, atomic and verified saves of a training, and exact resume."""

from trainwright.checkpoint.config import CheckpointConfig, HealthCheck, Retention, Tier
from trainwright.checkpoint.manager import Manager
from trainwright.checkpoint.owner import DirectoryOwner
from trainwright.checkpoint.policy.hooks import CommandHook, Hook, SlurmRequeue
from trainwright.checkpoint.restore.restored import Restored
from trainwright.checkpoint.save.saver import SaveHandle
from trainwright.checkpoint.state.differences import Difference, Effect

__all__ = [
    "CheckpointConfig",
    "CommandHook",
    "Difference",
    "DirectoryOwner",
    "Effect",
    "HealthCheck",
    "Hook",
    "Manager",
    "Restored",
    "Retention",
    "SaveHandle",
    "SlurmRequeue",
    "Tier",
]
