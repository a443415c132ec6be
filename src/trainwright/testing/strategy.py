"""What every strategy promises: subclass as Test<Strategy>, give `make_strategy` and `make_work`, inherit the tests."""

# ruff: noqa: S101 -- a test kit is made of asserts

from abc import ABC, abstractmethod

import numpy as np

from trainwright.plan.parallel.mesh import Ints, Mesh
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.strategies.registry import AXES
from trainwright.plan.parallel.strategies.strategy import ParallelStrategy, StageLoad

__all__ = ["StrategyConformance"]


class StrategyConformance(ABC):
    """Shares are shares, one part divides nothing, more parts never leave more; exchanges are real ones."""

    batch = 64

    @abstractmethod
    def make_strategy(self) -> ParallelStrategy:
        """Return the strategy."""

    @abstractmethod
    def make_work(self) -> ModelArrays:
        """Return a model that it can divide into at least four parts."""

    def meshes(self) -> Mesh:
        """Return a candidate for every degree that applies, within the limit."""
        strategy, arrays = self.make_strategy(), self.make_work()
        # Sixteen parts are enough to see how shares fall.
        most = min(16, strategy.limit(arrays, self.batch).most)
        degrees: Ints = np.arange(1, most + 1)
        degrees = degrees[strategy.applies(arrays, degrees)]
        # A strategy that is tested before it is registered has an axis that no other has.
        others = [axis for axis in AXES if axis.name != strategy.axis.name]
        axes = sorted([*others, strategy.axis], key=lambda axis: axis.order)
        table = np.ones((len(degrees), len(axes)), dtype=np.int64)
        table[:, axes.index(strategy.axis)] = degrees
        return Mesh.of(self.batch, table, axes=axes, micro=np.ones(len(degrees), dtype=np.int64), zero=0)

    def test_axis_and_limit(self) -> None:
        """The axis has a name; the limit says why, and one part always applies."""
        strategy, arrays = self.make_strategy(), self.make_work()
        assert strategy.axis.name.isidentifier()
        limit = strategy.limit(arrays, self.batch)
        assert limit.most >= 4
        assert limit.by
        assert strategy.applies(arrays, np.array([1]))[0]
        assert len(self.meshes().degrees) >= 3

    def test_shares(self) -> None:
        """Shares are above 0 and at most 1, at degree 1 exactly 1, and at degree p at least 1 / p."""
        strategy, arrays, mesh = self.make_strategy(), self.make_work(), self.meshes()
        degree = mesh.axis(strategy.axis.name)[:, None]
        for share in (strategy.compute(arrays, mesh), *strategy.memory(arrays, mesh)):
            assert share.shape == (mesh.rows, len(arrays.layers))
            assert (share <= 1).all()
            assert (share >= 1 / degree - 1e-12).all()
            assert (share[0] == 1).all()

    def test_more_parts_leave_no_more(self) -> None:
        """What doubling the degree leaves of any layer is no larger."""
        strategy, arrays, mesh = self.make_strategy(), self.make_work(), self.meshes()
        degrees = mesh.axis(strategy.axis.name).tolist()
        # Each degree with its double, where both apply.
        pairs = [(degrees.index(degree), degrees.index(2 * degree)) for degree in degrees if 2 * degree in degrees]
        assert pairs
        for share in (strategy.compute(arrays, mesh), *strategy.memory(arrays, mesh)):
            for few, many in pairs:
                assert (share[many] <= share[few] + 1e-12).all()

    def test_exchanges(self) -> None:
        """One part exchanges nothing; sizes and counts are finite, groups have the degree's ranks."""
        strategy, arrays, mesh = self.make_strategy(), self.make_work(), self.meshes()
        degree = mesh.axis(strategy.axis.name)
        # A load of one stage that holds the whole model.
        weights = np.tile(arrays.per_block(arrays.weights), (mesh.rows, 1))
        runs = np.tile(arrays.counts.astype(np.float64), (mesh.rows, 1))
        load = StageLoad(
            runs=runs,
            weights=weights,
            trained=weights,
            trained_experts=weights * 0,
            cut_bytes=np.full(mesh.rows, 4096.0),
        )
        listed = [*strategy.communication(arrays, mesh, None), *strategy.communication(arrays, mesh, load)]
        assert listed
        for exchange in listed:
            active = exchange.count > 0
            assert not (active & (exchange.ranks == 1) & (degree == 1) & (exchange.operation != "all_reduce")).any()
            assert (exchange.ranks[active & (degree > 1)] <= degree[active & (degree > 1)]).all()
            assert np.isfinite(exchange.bytes).all()
            assert (exchange.bytes >= 0).all()
            assert exchange.block is None or 0 <= exchange.block < len(arrays.counts)
        assert any((exchange.count[degree > 1] > 0).all() for exchange in listed)
