"""Pipeline stages: the chain of blocks cut into parts so that the slowest takes least."""

from dataclasses import dataclass

import numpy as np

from trainwright.plan.parallel.mesh import Floats, Ints
from trainwright.plan.parallel.model_arrays import ModelArrays

__all__ = ["PipelineStages", "cuts", "stages_of"]


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


def cuts(seconds: Floats, most: int) -> list[Ints]:
    """Return for 1, 2, ... `most` parts where each ends: contiguous parts, the largest sum of which is least.

    Dynamic programming over (parts, end), n^2 steps a part; of equal choices the one that cuts last.
    """
    length = len(seconds)
    before = np.concatenate([[0.0], np.cumsum(seconds)])
    spans = np.where(
        np.arange(length + 1)[:, None] < np.arange(length + 1)[None, :], before[None, :] - before[:, None], np.inf
    )
    # best[e] is the least possible largest part of the first e items, for the number of parts so far.
    best, choices = spans[0], [np.zeros(length + 1, dtype=np.int64)]
    # One part more: its begin is where the larger of (rest, new part) is smallest, the last such place.
    for _ in range(1, most):
        largest = np.maximum(best[:, None], spans)
        choice = length - np.argmin(largest[::-1], axis=0)
        choices.append(choice)
        best = largest[choice, np.arange(length + 1)]
    found = []
    # Walk the choices back from the end to find where each part ends.
    for parts in range(1, most + 1):
        ends = [length]
        for choice in choices[parts - 1 : 0 : -1]:
            ends.append(int(choice[ends[-1]]))
        found.append(np.array(ends[::-1], dtype=np.int64))
    return found


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
