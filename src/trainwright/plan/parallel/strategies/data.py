"""Data parallelism and its sharded forms (ZeRO, FSDP): every rank has its own samples, gradients are all-reduced.

Replicated: Li et al., "PyTorch Distributed" (arXiv 2006.15704): an all-reduce in buckets beside the backward pass.
ZeRO-1 and -2: Rajbhandari et al. (arXiv 1910.02054), section 5: gradients are reduce-scattered, each rank updates its
part, and weights are gathered. ZeRO-3 as FSDP: Zhao et al. (arXiv 2304.11277): each block's weights are gathered before
its forward and its backward pass, and its gradients scattered after it; hybrid (HSDP): these inside `shard` ranks, and
an all-reduce of the parts between them. Whatever divides samples or places keeps copies of the weights: the gradients
of context, spatial and expert ranks are summed together with those of data ranks.
"""

import numpy as np

from trainwright.plan.parallel.mesh import Floats, Ints, Mesh, ParallelAxis
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.strategies.strategy import Exchange, Limit, Operation, ParallelStrategy, Phase, StageLoad

__all__ = ["BUCKET_BYTES", "DataStrategy"]

BUCKET_BYTES = 25 * 2**20
"""Of DistributedDataParallel, by default."""


class DataStrategy(ParallelStrategy):
    """Divide the batch into `data` parts; `Mesh.zero` says what else is divided, over `Mesh.shard` ranks."""

    axis = ParallelAxis(name="data", order=70, divides_samples=True, copies_weights=True, inside_stage=False)

    def limit(self, arrays: ModelArrays, batch: int) -> Limit:  # noqa: ARG002 -- any model
        """Return the number of samples."""
        return Limit(most=batch, by="the samples of a batch")

    def communication(self, arrays: ModelArrays, mesh: Mesh, load: StageLoad | None) -> list[Exchange]:
        """Return the exchanges of gradients, and of weights where these are divided."""
        if load is None:
            return []
        # Experts are divided over expert ranks: their gradients are summed over the other copies only.
        common = (load.runs * (load.trained - load.trained_experts)).sum(axis=1)
        experts = (load.runs * load.trained_experts).sum(axis=1)
        copies = tuple(axis.name for axis in mesh.axes if axis.copies_weights)
        found = self._replicated(arrays, mesh, common, copies)
        if experts.any():
            found += self._replicated(arrays, mesh, experts, tuple(name for name in copies if name != "expert"))
        return found + self._divided(arrays, mesh, common + experts) + self._gathered(arrays, mesh, load)

    def _replicated(self, arrays: ModelArrays, mesh: Mesh, weights: Floats, axes: tuple[str, ...]) -> list[Exchange]:
        ranks, stride = mesh.group(axes)
        total = weights * arrays.precision.gradient_bytes
        buckets = np.maximum(1.0, np.ceil(total / BUCKET_BYTES))
        count = np.where((mesh.zero == 0) & (ranks > 1), buckets, 0.0)
        return [
            Exchange("all_reduce", _named(mesh, axes), ranks, stride, total / buckets, count, "gradient", overlaps=True)
        ]

    def _divided(self, arrays: ModelArrays, mesh: Mesh, weights: Floats) -> list[Exchange]:
        """Return what ZeRO-1 and -2 exchange: once an iteration, gradients of level 2 once a micro-batch."""
        ranks, stride, others = _shards(mesh)
        # ZeRO 1 reduces gradients once an iteration, ZeRO 2 with every micro-batch.
        level = np.isin(mesh.zero, (1, 2)) & (ranks > 1)
        times = np.where(mesh.zero == 2, mesh.microbatches, 1)
        gradients, halves = weights * arrays.precision.gradient_bytes, weights * arrays.precision.weight_bytes
        buckets = np.maximum(1.0, np.ceil(gradients / BUCKET_BYTES))
        count = np.where(level, buckets, 0.0)
        one = np.where(level, 1.0, 0.0)
        found = [
            Exchange(
                "reduce_scatter", "data", ranks, stride, gradients / buckets, count * times, "gradient", overlaps=True
            ),
            Exchange("all_gather", "data", ranks, stride, halves, one, "update"),
        ]
        return found + _summed(others, gradients / ranks, np.where(mesh.zero > 0, 1.0, 0.0))

    def _gathered(self, arrays: ModelArrays, mesh: Mesh, load: StageLoad) -> list[Exchange]:
        """Return what ZeRO-3 exchanges: for each run of a block, in every micro-batch."""
        ranks, stride, _ = _shards(mesh)
        level = (mesh.zero == 3) & (ranks > 1)
        if not level.any():
            return []
        found = []
        for where, block in enumerate(arrays.blocks):
            halves = load.weights[:, where] * arrays.precision.weight_bytes
            gradients = load.trained[:, where] * arrays.precision.gradient_bytes
            moves: tuple[tuple[Operation, Floats, Phase], ...] = (
                ("all_gather", halves, "forward"),
                ("all_gather", halves, "backward"),
                ("reduce_scatter", gradients, "gradient"),
            )
            for operation, size, phase in moves:
                count = np.where(level & (size > 0), 1.0, 0.0)
                found.append(
                    Exchange(operation, "data", ranks, stride, size, count, phase, where, block.name, overlaps=True)
                )
        return found


def _named(mesh: Mesh, axes: tuple[str, ...]) -> str:
    """Return the axes of a group of copies that some candidate divides, joined by "+"."""
    return "+".join(name for name in axes if name == "data" or (mesh.axis(name) > 1).any())


def _shards(mesh: Mesh) -> tuple[Ints, Ints, list[tuple[str, Ints, Ints]]]:
    """Return (ranks, stride) of the shards, and the groups of other copies, whose parts are summed."""
    ranks, data = mesh.shard, mesh.axis("data")
    beyond = ranks > data  # over the context ranks too
    stride = np.where(beyond, mesh.group(("context", "data"))[1], mesh.group(("data",))[1])
    inside, inner_stride = mesh.group(("context", "spatial", "expert"))
    others = [
        ("context+spatial+expert", np.where(beyond, 1, inside), inner_stride),
        ("data", np.where(beyond, 1, data // np.maximum(1, ranks)), stride * ranks),
    ]
    return ranks, stride, others


def _summed(others: list[tuple[str, Ints, Ints]], size: Floats, count: Floats) -> list[Exchange]:
    return [
        Exchange("all_reduce", name, ranks, stride, size, np.where(ranks > 1, count, 0.0), "gradient", overlaps=True)
        for name, ranks, stride in others
        if ((ranks > 1) & (count > 0)).any()
    ]
