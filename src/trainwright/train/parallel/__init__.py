"""Runnable parallel modules on torch.distributed, with numerics equal to one device."""

from trainwright.train.parallel.channel import ChannelParallel
from trainwright.train.parallel.counting import Tally
from trainwright.train.parallel.filter import FilterParallel
from trainwright.train.parallel.model import Parallel
from trainwright.train.parallel.norm import SynchronisedNorm
from trainwright.train.parallel.part import Part, whole
from trainwright.train.parallel.spatial import SpatialParallel

__all__ = [
    "ChannelParallel",
    "FilterParallel",
    "Parallel",
    "Part",
    "SpatialParallel",
    "SynchronisedNorm",
    "Tally",
    "whole",
]
