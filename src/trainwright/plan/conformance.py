"""What every strategy promises: subclass as Test<Strategy>, give `make_strategy` and `make_work`, inherit the tests."""

# ruff: noqa: S101 -- a test kit is made of asserts

import numpy as np

from trainwright.plan.parallel.mesh import AXES, Ints, Mesh
from trainwright.plan.parallel.model_arrays import Work
from trainwright.plan.parallel.strategies.registry import Load, Strategy

__all__ = ["StrategyConformance"]


class StrategyConformance:
    """Shares are shares, one part divides nothing, more parts never leave more; exchanges are real ones."""

    batch = 64

    def make_strategy(self) -> Strategy:
        """Return the strategy."""
        raise NotImplementedError

    def make_work(self) -> Work:
        """Return a model that it can divide into at least four parts."""
        raise NotImplementedError

    def meshes(self) -> Mesh:
        """Return a candidate for every degree that applies, within the limit."""
        strategy, work = self.make_strategy(), self.make_work()
        most = min(16, strategy.limit(work, self.batch).most)
        degrees: Ints = np.arange(1, most + 1)
        degrees = degrees[strategy.applies(work, degrees)]
        table = np.ones((len(degrees), len(AXES)), dtype=np.int64)
        table[:, AXES.index(strategy.axis)] = degrees
        return Mesh.of(self.batch, table, micro=np.ones(len(degrees), dtype=np.int64), zero=0)

    def test_axis_and_limit(self) -> None:
        """The axis is one of `Degrees`; the limit says why, and one part always applies."""
        strategy, work = self.make_strategy(), self.make_work()
        assert strategy.axis in AXES
        limit = strategy.limit(work, self.batch)
        assert limit.most >= 4
        assert limit.by
        assert strategy.applies(work, np.array([1]))[0]
        assert len(self.meshes().degrees) >= 3

    def test_shares(self) -> None:
        """Shares are above 0 and at most 1, at degree 1 exactly 1, and at degree p at least 1 / p."""
        strategy, work, mesh = self.make_strategy(), self.make_work(), self.meshes()
        degree = mesh.axis(strategy.axis)[:, None]
        for share in (strategy.compute(work, mesh), *strategy.memory(work, mesh)):
            assert share.shape == (mesh.rows, len(work.layers))
            assert (share <= 1).all()
            assert (share >= 1 / degree - 1e-12).all()
            assert (share[0] == 1).all()

    def test_more_parts_leave_no_more(self) -> None:
        """What doubling the degree leaves of any layer is no larger."""
        strategy, work, mesh = self.make_strategy(), self.make_work(), self.meshes()
        degrees = mesh.axis(strategy.axis).tolist()
        pairs = [(degrees.index(each), degrees.index(2 * each)) for each in degrees if 2 * each in degrees]
        assert pairs
        for share in (strategy.compute(work, mesh), *strategy.memory(work, mesh)):
            for few, many in pairs:
                assert (share[many] <= share[few] + 1e-12).all()

    def test_exchanges(self) -> None:
        """One part exchanges nothing; sizes and counts are finite, groups have the degree's ranks."""
        strategy, work, mesh = self.make_strategy(), self.make_work(), self.meshes()
        degree = mesh.axis(strategy.axis)
        weights = np.tile(work.per_block(work.weights), (mesh.rows, 1))
        runs = np.tile(work.counts.astype(np.float64), (mesh.rows, 1))
        load = Load(
            runs=runs,
            weights=weights,
            trained=weights,
            trained_experts=weights * 0,
            cut_bytes=np.full(mesh.rows, 4096.0),
        )
        listed = [*strategy.communication(work, mesh, None), *strategy.communication(work, mesh, load)]
        assert listed
        for exchange in listed:
            active = exchange.count > 0
            assert not (active & (exchange.ranks == 1) & (degree == 1) & (exchange.operation != "all_reduce")).any()
            assert (exchange.ranks[active & (degree > 1)] <= degree[active & (degree > 1)]).all()
            assert np.isfinite(exchange.bytes).all()
            assert (exchange.bytes >= 0).all()
            assert exchange.block is None or 0 <= exchange.block < len(work.counts)
        assert any((exchange.count[degree > 1] > 0).all() for exchange in listed)
