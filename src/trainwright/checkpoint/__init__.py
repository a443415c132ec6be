"""Checkpoints: asynchronous saves of a training, published whole and verified, and exact resume."""

from trainwright.checkpoint.config import CheckpointConfig, Retention
from trainwright.checkpoint.manager import Manager
from trainwright.checkpoint.policy.signals import SlurmRequeue
from trainwright.checkpoint.restore.restored import Restored

__all__ = [
    "CheckpointConfig",
    "Manager",
    "Restored",
    "Retention",
    "SlurmRequeue",
]
