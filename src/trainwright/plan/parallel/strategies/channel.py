"""Channel parallelism: the input channels of every convolution and matrix but the first are divided.

Kahira et al. (arXiv 2104.09075), section 4.2: every rank has a part of the sum that is the output, which an all-reduce
completes forward; backward the slices of the gradient of the input are gathered.
"""

import numpy as np

from trainwright.plan.parallel.mesh import Floats, Mesh, ParallelAxis
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.strategies.filter import divisible
from trainwright.plan.parallel.strategies.strategy import Exchange, Limit, ParallelStrategy, StageLoad, largest_part

__all__ = ["ChannelStrategy"]


class ChannelStrategy(ParallelStrategy):
    """Divide input channels into `channel` parts, the largest of which counts; the first layer is not divided."""

    axis = ParallelAxis(name="channel", order=40, exclusive="layers")

    def limit(self, arrays: ModelArrays, batch: int) -> Limit:  # noqa: ARG002 -- the samples stay together
        """Return the fewest input channels of a layer after the first."""
        if arrays.hidden:
            return Limit(most=1, by="tensor parallelism divides transformer blocks")
        found = [(arrays.layers[place].channels, arrays.layers[place].name) for place in divisible(arrays)[1:]]
        if not found:
            return Limit(most=1, by="no convolution or matrix after the first")
        most, name = min(found, key=lambda each: each[0])
        return Limit(most=most, by=f"the {most} channels of {name}")

    def compute(self, arrays: ModelArrays, mesh: Mesh) -> Floats:
        """Return, of a layer that is divided, the part with most channels."""
        return _largest_part(arrays, mesh)

    def memory(self, arrays: ModelArrays, mesh: Mesh) -> tuple[Floats, Floats]:
        """Divide weights and the inputs that are kept for them."""
        share = _largest_part(arrays, mesh)
        return share, share

    def communication(self, arrays: ModelArrays, mesh: Mesh, load: StageLoad | None) -> list[Exchange]:
        """Return an all-reduce of each output, and an all-gather of the gradient of each input."""
        if load is not None:
            return []
        ranks, stride = mesh.group(("channel",))
        once = np.where(ranks > 1, 1.0, 0.0)
        unit = mesh.micro * float(arrays.precision.element_bytes)
        found = []
        for place in divisible(arrays)[1:]:
            where, name = int(arrays.block[place]), arrays.layers[place].name
            outputs, inputs = unit * arrays.outputs[place], unit * arrays.inputs[place]
            found.append(Exchange("all_reduce", "channel", ranks, stride, outputs, once, "forward", where, name))
            found.append(Exchange("all_gather", "channel", ranks, stride, inputs, once, "backward", where, name))
        return found


def _largest_part(arrays: ModelArrays, mesh: Mesh) -> Floats:
    return largest_part(
        arrays, mesh, "channel", {place: arrays.layers[place].channels for place in divisible(arrays)[1:]}
    )
