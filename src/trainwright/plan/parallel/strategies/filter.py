"""Filter parallelism: the output channels of every convolution and matrix are divided.

Kahira et al., "An Oracle for Guiding Large-Scale Model/Hybrid Parallel Training" (arXiv 2104.09075), section 4.2: an
all-gather of outputs forward; backward every rank has a part of the sum that is the gradient of the input, of which
only a slice is wanted: a reduce-scatter in place of the paper's all-reduce.
"""

import numpy as np

from trainwright.plan.parallel.mesh import Floats, Mesh, ParallelAxis
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.strategies.strategy import (
    Exchange,
    Limit,
    ParallelStrategy,
    StageLoad,
    largest_part,
    undivided,
)

__all__ = ["FilterStrategy", "divisible"]


class FilterStrategy(ParallelStrategy):
    """Divide output channels into `filter` parts, the largest of which counts."""

    axis = ParallelAxis(name="filter", order=30, exclusive="layers")

    def limit(self, arrays: ModelArrays, batch: int) -> Limit:  # noqa: ARG002 -- the samples stay together
        """Return the fewest output channels of a layer."""
        if arrays.hidden:
            return Limit(most=1, by="tensor parallelism divides transformer blocks")
        found = [(arrays.layers[place].filters, arrays.layers[place].name) for place in divisible(arrays)]
        if not found:
            return Limit(most=1, by="no convolution or matrix")
        most, name = min(found, key=lambda each: each[0])
        return Limit(most=most, by=f"the {most} filters of {name}")

    def compute(self, arrays: ModelArrays, mesh: Mesh) -> Floats:
        """Return, of a layer that is divided, the part with most channels."""
        return _largest_part(arrays, mesh)

    def memory(self, arrays: ModelArrays, mesh: Mesh) -> tuple[Floats, Floats]:
        """Divide weights; every rank keeps whole inputs."""
        return _largest_part(arrays, mesh), undivided(arrays, mesh)

    def communication(self, arrays: ModelArrays, mesh: Mesh, load: StageLoad | None) -> list[Exchange]:
        """Return an all-gather of each output, and a reduce-scatter of the gradient of each input but the first."""
        if load is not None:
            return []
        ranks, stride = mesh.group(("filter",))
        once = np.where(ranks > 1, 1.0, 0.0)
        unit = mesh.micro * float(arrays.precision.element_bytes)
        found = []
        for order, place in enumerate(divisible(arrays)):
            where, name = int(arrays.block[place]), arrays.layers[place].name
            outputs, inputs = unit * arrays.outputs[place], unit * arrays.inputs[place]
            found.append(Exchange("all_gather", "filter", ranks, stride, outputs, once, "forward", where, name))
            if order:
                found.append(Exchange("reduce_scatter", "filter", ranks, stride, inputs, once, "backward", where, name))
        return found


def divisible(arrays: ModelArrays) -> list[int]:
    """Return the places of convolutions and matrices whose output channels can be divided: not of grouped ones."""
    return [
        place
        for place, layer in enumerate(arrays.layers)
        if layer.kind in {"conv", "linear"} and layer.filters > 1 and layer.groups == 1 and not _last(arrays, place)
    ]


def _last(arrays: ModelArrays, place: int) -> bool:
    """Return whether a matrix is the classifier at the end, whose few outputs every rank needs whole."""
    weighted = [other for other, layer in enumerate(arrays.layers) if layer.kind in {"conv", "linear"}]
    return len(weighted) > 1 and place == weighted[-1] and arrays.layers[place].kind == "linear"


def _largest_part(arrays: ModelArrays, mesh: Mesh) -> Floats:
    return largest_part(arrays, mesh, "filter", {place: arrays.layers[place].filters for place in divisible(arrays)})
