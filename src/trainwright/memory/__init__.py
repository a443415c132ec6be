"""Train what does not fit: rematerialisation, offloading and pipeline partitions of a chain of stages."""

from trainwright.memory.chain import Chain, Option, Stage
from trainwright.memory.operations import Kind, Operation, Value

__all__ = ["Chain", "Kind", "Operation", "Option", "Stage", "Value"]
