"""Measuring a machine: compute, memory, links by gloo or NCCL, storage; the result is a cluster and its errors."""

from trainwright.profile.calibrating.calibration import calibrate
from trainwright.profile.calibrating.ranks import LAUNCHERS, Place, joined, place

__all__ = ["LAUNCHERS", "Place", "calibrate", "joined", "place"]
