"""Pipeline stages: what each part of a chain of blocks runs, where the chain is cut at given places."""

from dataclasses import dataclass

import numpy as np

from trainwright.plan.parallel.mesh import Floats, Ints
from trainwright.plan.parallel.model_arrays import ModelArrays

__all__ = ["PipelineStages", "stages_of"]


@dataclass(frozen=True, eq=False, slots=True)
class PipelineStages:
    """The different stages of a pipeline: `runs` (stages, blocks), and the first place at which each stands.

    Equal stages are one; the first of them is that with most micro-batches in flight.
    """

    runs: Floats
    first: Ints
    cut_bytes: float
    """The most that a sample hands on between two stages, traced."""
    lengths: tuple[int, ...]
    """Blocks of each stage, of chunk after chunk."""
    begins: tuple[str, ...]
    """Paths of the modules that all but the first of these begin with, () if they are not known."""


def stages_of(arrays: ModelArrays, ends: Ints, chunks: int) -> PipelineStages:
    """Return the stages of a chain cut at `ends`: with chunks, stage i has parts i, i + p, i + 2p, ..."""
    of_run = np.repeat(np.arange(len(arrays.counts)), arrays.counts)
    starts = np.concatenate([[0], ends[:-1]])
    edges = np.cumsum(arrays.counts)
    # How many runs of each repeated block lie before every cut.
    before = np.clip(np.concatenate([starts, ends[-1:]])[:, None], edges - arrays.counts, edges)
    parts = np.diff(before, axis=0)
    stages = len(ends) // chunks
    blocks_of_stage = parts.reshape(chunks, stages, -1).sum(axis=0)
    # Stages with equal runs cost the same: one of them is priced, the first, which has most in flight.
    runs, first = np.unique(blocks_of_stage, axis=0, return_index=True)
    handed = max((arrays.blocks[of_run[end - 1]].output_bytes for end in ends[:-1]), default=0)
    paths = [begin for block in arrays.blocks for begin in block.begins]
    return PipelineStages(
        begins=tuple(paths[start] for start in starts[1:]) if paths else (),
        runs=runs.astype(np.float64),
        first=first.astype(np.int64),
        cut_bytes=float(handed),
        lengths=tuple(int(length) for length in ends - starts),
    )
