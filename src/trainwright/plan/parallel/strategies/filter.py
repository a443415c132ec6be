"""Filter and channel parallelism: the output or input channels of convolutions and matrices are divided.

Kahira et al., "An Oracle for Guiding Large-Scale Model/Hybrid Parallel Training" (arXiv 2104.09075), section 4.2.
Filters: an all-gather of outputs forward; backward every rank has a part of the sum that is the gradient of the input,
of which only a slice is wanted: a reduce-scatter in place of the paper's all-reduce. Channels: every rank has a part of
the sum that is the output, so an all-reduce forward; backward each has a slice of the gradient: an all-gather.
"""

from abc import abstractmethod

import numpy as np

from trainwright.plan.parallel.mesh import Floats, Mesh, ParallelAxis
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.strategies.strategy import (
    Exchange,
    Limit,
    Operation,
    ParallelStrategy,
    StageLoad,
    undivided,
)

__all__ = ["ChannelStrategy", "FilterStrategy", "divisible"]


class _ChannelsOfLayers(ParallelStrategy):
    """What both share: the largest part of a layer's channels on one side counts."""

    @abstractmethod
    def divided_widths(self, arrays: ModelArrays) -> dict[int, int]:
        """Return the number of channels that are divided, by the place of each layer that can be."""

    def limit_by(self, arrays: ModelArrays, what: str, otherwise: str) -> Limit:
        """Return the fewest channels of a layer."""
        if arrays.hidden:
            return Limit(most=1, by="tensor parallelism divides transformer blocks")
        found = [(width, arrays.layers[place].name) for place, width in self.divided_widths(arrays).items()]
        if not found:
            return Limit(most=1, by=otherwise)
        most, name = min(found, key=lambda each: each[0])
        return Limit(most=most, by=f"the {most} {what} of {name}")

    def compute(self, arrays: ModelArrays, mesh: Mesh) -> Floats:
        """Return, of a layer that is divided, the part with most channels."""
        share, degree = undivided(arrays, mesh), mesh.axis(self.axis.name)
        for place, width in self.divided_widths(arrays).items():
            share[:, place] = -(-width // degree) / width
        return share

    def exchange_layers(
        self, arrays: ModelArrays, mesh: Mesh, load: StageLoad | None, forward: Operation, backward: Operation
    ) -> list[Exchange]:
        """Return `forward` of each output, and `backward` of the gradient of each input but the model's own."""
        if load is not None:
            return []
        axis = self.axis.name
        ranks, stride = mesh.group((axis,))
        once = np.where(ranks > 1, 1.0, 0.0)
        unit = mesh.micro * float(arrays.precision.element_bytes)
        first = divisible(arrays)[:1]
        found = []
        for place in self.divided_widths(arrays):
            where, name = int(arrays.block[place]), arrays.layers[place].name
            outputs, inputs = unit * arrays.outputs[place], unit * arrays.inputs[place]
            found.append(Exchange(forward, axis, ranks, stride, outputs, once, "forward", where, name))
            # Nobody wants the gradient of the data.
            if place not in first:
                found.append(Exchange(backward, axis, ranks, stride, inputs, once, "backward", where, name))
        return found


class FilterStrategy(_ChannelsOfLayers):
    """Divide output channels into `filter` parts, the largest of which counts."""

    axis = ParallelAxis(name="filter", order=30, exclusive="layers")

    def divided_widths(self, arrays: ModelArrays) -> dict[int, int]:
        """Return the output channels of each layer."""
        return {place: arrays.layers[place].filters for place in divisible(arrays)}

    def limit(self, arrays: ModelArrays, batch: int) -> Limit:  # noqa: ARG002 -- the samples stay together
        """Return the fewest output channels of a layer."""
        return self.limit_by(arrays, "filters", "no convolution or matrix")

    def memory(self, arrays: ModelArrays, mesh: Mesh) -> tuple[Floats, Floats]:
        """Divide weights; every rank keeps whole inputs."""
        return self.compute(arrays, mesh), undivided(arrays, mesh)

    def communication(self, arrays: ModelArrays, mesh: Mesh, load: StageLoad | None) -> list[Exchange]:
        """Return an all-gather of each output, and a reduce-scatter of the gradient of each input but the first."""
        return self.exchange_layers(arrays, mesh, load, "all_gather", "reduce_scatter")


class ChannelStrategy(_ChannelsOfLayers):
    """Divide input channels into `channel` parts, the largest of which counts; the first layer is not divided."""

    axis = ParallelAxis(name="channel", order=40, exclusive="layers")

    def divided_widths(self, arrays: ModelArrays) -> dict[int, int]:
        """Return the input channels of each layer after the first."""
        return {place: arrays.layers[place].channels for place in divisible(arrays)[1:]}

    def limit(self, arrays: ModelArrays, batch: int) -> Limit:  # noqa: ARG002 -- the samples stay together
        """Return the fewest input channels of a layer after the first."""
        return self.limit_by(arrays, "channels", "no convolution or matrix after the first")

    def memory(self, arrays: ModelArrays, mesh: Mesh) -> tuple[Floats, Floats]:
        """Divide weights and the inputs that are kept for them."""
        share = self.compute(arrays, mesh)
        return share, share

    def communication(self, arrays: ModelArrays, mesh: Mesh, load: StageLoad | None) -> list[Exchange]:
        """Return an all-reduce of each output, and an all-gather of the gradient of each input."""
        return self.exchange_layers(arrays, mesh, load, "all_reduce", "all_gather")


def divisible(arrays: ModelArrays) -> list[int]:
    """Return the places of convolutions and matrices whose output channels can be divided: not of grouped ones."""
    layers = arrays.layers
    weighted = [place for place, layer in enumerate(layers) if layer.kind in {"conv", "linear"}]
    # The classifier at the end, whose few outputs every rank needs whole.
    if len(weighted) > 1 and layers[weighted[-1]].kind == "linear":
        weighted.pop()
    return [place for place in weighted if layers[place].filters > 1 and layers[place].groups == 1]
