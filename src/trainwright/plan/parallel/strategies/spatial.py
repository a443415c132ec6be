"""Spatial parallelism: divides the height and width of every sample; the cost of its halo exchange.

Dryden et al., "Improving Strong-Scaling of CNN Training by Exploiting Finer-Grained Parallelism" (arXiv 1903.06681);
Kahira et al. (arXiv 2104.09075), section 4.2. A convolution or pooling needs rows of its input that lie with the
neighbours: `padding` above, and `dilation * (K - 1) + 1 - stride - padding` below; backward their gradients go back.
"""

import math

import numpy as np

from trainwright.model.layer import Layer
from trainwright.plan.parallel.mesh import Bools, Floats, Ints, Mesh, ParallelAxis
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.strategies.strategy import Exchange, Limit, ParallelStrategy, StageLoad, undivided

__all__ = ["SpatialStrategy", "grid", "halo_elements"]


class SpatialStrategy(ParallelStrategy):
    """Divide the first spatial sizes into `spatial` parts; layers without spatial sizes are done by every rank."""

    axis = ParallelAxis(name="spatial", order=50, copies_weights=True, exclusive="layers")

    def limit(self, arrays: ModelArrays, batch: int) -> Limit:  # noqa: ARG002 -- the samples stay together
        """Return the fewest places of a layer that has any."""
        found = [(math.prod(_sizes(layer)), layer.name) for layer in _spatial(arrays)]
        if not found:
            return Limit(most=1, by="no layer has spatial sizes")
        most, name = min(found, key=lambda each: each[0])
        return Limit(most=most, by=f"the {most} places of {name}")

    def applies(self, arrays: ModelArrays, degrees: Ints) -> Bools:
        """Accept parts in a grid that fits into the smallest of the sizes, if no halo reaches beyond a neighbour."""
        return np.array([self._fits(arrays, int(degree)) for degree in degrees], dtype=np.bool_)

    def _fits(self, arrays: ModelArrays, degree: int) -> bool:
        parts = grid(arrays, degree)
        for layer in _spatial(arrays):
            if parts is None:
                return False
            if any(part > size for part, size in zip(parts, _sizes(layer), strict=False)):
                return False
            for dimension, part in enumerate(parts):
                above, below = _halo_rows(layer, dimension)
                if part > 1 and max(above, below) > layer.input_size[dimension] // part:
                    return False
        return True

    def compute(self, arrays: ModelArrays, mesh: Mesh) -> Floats:
        """Return, of a layer with spatial sizes, the largest part."""
        degrees, of_row = np.unique(mesh.axis("spatial"), return_inverse=True)
        share = np.ones((len(degrees), len(arrays.layers)))
        for number, degree in enumerate(degrees):
            parts = grid(arrays, int(degree)) or ()
            for place, layer in enumerate(arrays.layers):
                if _splits(layer):
                    divided = zip(_sizes(layer), parts, strict=False)
                    share[number, place] = math.prod(-(-size // part) / size for size, part in divided)
        return share[of_row]

    def memory(self, arrays: ModelArrays, mesh: Mesh) -> tuple[Floats, Floats]:
        """Divide what is kept, but no weights."""
        return undivided(arrays, mesh), self.compute(arrays, mesh)

    def communication(self, arrays: ModelArrays, mesh: Mesh, load: StageLoad | None) -> list[Exchange]:
        """Return the halo of each layer in both directions and phases, and the gather where spatial sizes end."""
        if load is not None:
            return []
        ranks, stride = mesh.group(("spatial",))
        unit = mesh.micro.astype(np.float64) * arrays.precision.element_bytes
        degrees, of_rank = np.unique(ranks, return_inverse=True)
        grids = [grid(arrays, int(degree)) or () for degree in degrees]
        found = []
        for place, layer in enumerate(arrays.layers):
            if not _splits(layer):
                continue
            halos = np.array([_halo(layer, parts, arrays.profile.batch) for parts in grids], dtype=np.float64)
            for side in range(2):
                size: Floats = unit * halos[of_rank, side]
                count = np.where(size > 0, 1.0, 0.0)
                if count.any():
                    where = int(arrays.block[place])
                    found += [
                        Exchange("send", "spatial", ranks, stride, size, count, phase, where, layer.name)
                        for phase in ("forward", "backward")
                    ]
        last = max((place for place, layer in enumerate(arrays.layers) if _splits(layer)), default=None)
        if last is not None and last + 1 < len(arrays.layers):
            where, name, once = int(arrays.block[last]), arrays.layers[last].name, np.where(ranks > 1, 1.0, 0.0)
            gathered: Floats = unit * arrays.outputs[last]
            found.append(Exchange("all_gather", "spatial", ranks, stride, gathered, once, "forward", where, name))
            found.append(Exchange("reduce_scatter", "spatial", ranks, stride, gathered, once, "backward", where, name))
        return found


def grid(arrays: ModelArrays, degree: int) -> tuple[int, ...] | None:
    """Return into how many parts each of the first two sizes is divided, None if they do not allow it.

    Height alone, as long as every layer has the rows.
    """
    sizes = [(*_sizes(layer), 1)[:2] for layer in _spatial(arrays)]
    if not sizes:
        return None
    # Height is divided first; width only where no layer has rows enough.
    rows, columns = (min(item) for item in zip(*sizes, strict=True))
    down = max((part for part in range(1, min(rows, degree) + 1) if degree % part == 0), default=1)
    return (down, degree // down) if degree // down <= columns else None


def halo_elements(arrays: ModelArrays, layer: Layer, degree: int) -> tuple[int, int]:
    """Return the elements of a sample that a part receives from (before, after) it, over all divided dimensions."""
    return _halo(layer, grid(arrays, degree) or (), arrays.profile.batch)


def _halo(layer: Layer, parts: tuple[int, ...], batch: int) -> tuple[int, int]:
    before = after = 0
    for dimension, part in enumerate(parts):
        if part == 1 or dimension >= len(layer.input_size):
            continue
        across = layer.input_elements // max(1, math.prod(layer.input_size)) // max(1, batch)
        for other, size in enumerate(layer.input_size):
            if other != dimension:
                across *= -(-size // parts[other]) if other < len(parts) else size
        above, below = _halo_rows(layer, dimension)
        before, after = before + above * across, after + below * across
    return before, after


def _halo_rows(layer: Layer, dimension: int) -> tuple[int, int]:
    if dimension >= len(layer.kernel):
        return 0, 0
    stride = layer.stride[dimension] if layer.stride else 1
    padding = layer.padding[dimension] if layer.padding else 0
    dilation = layer.dilation[dimension] if layer.dilation else 1
    reach = dilation * (layer.kernel[dimension] - 1) + 1
    return padding, max(0, reach - stride - padding)


def _splits(layer: Layer) -> bool:
    """Return whether a layer has places to divide: a global pooling leaves one, and so ends the divided part."""
    return math.prod(_sizes(layer)) > 1


def _sizes(layer: Layer) -> tuple[int, ...]:
    return tuple(min(pair) for pair in zip(layer.input_size, layer.output_size, strict=False))


def _spatial(arrays: ModelArrays) -> list[Layer]:
    return [layer for layer in arrays.layers if _splits(layer)]
