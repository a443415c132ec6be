"""The strategies: what all promise, and the formulas of each from small layers by hand."""

import pytest
from oracle_cases import make_cluster, make_convolutions, make_transformer

from trainwright.plan import Degrees, Oracle
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.precision import precision_of
from trainwright.plan.parallel.strategies.context import ContextStrategy
from trainwright.plan.parallel.strategies.data import DataStrategy
from trainwright.plan.parallel.strategies.expert import ExpertStrategy
from trainwright.plan.parallel.strategies.filter import ChannelStrategy, FilterStrategy
from trainwright.plan.parallel.strategies.pipeline import PipelineStrategy
from trainwright.plan.parallel.strategies.registry import STRATEGIES
from trainwright.plan.parallel.strategies.spatial import SpatialStrategy, halo_elements
from trainwright.plan.parallel.strategies.tensor import TensorStrategy
from trainwright.testing.strategy import StrategyConformance

FP32 = precision_of("fp32")


class OfTransformer(StrategyConformance):
    def make_work(self):
        return ModelArrays(make_transformer(layers=4), FP32)


class OfConvolutions(StrategyConformance):
    def make_work(self):
        return ModelArrays(make_convolutions(), FP32)


class TestTensor(OfTransformer):
    def make_strategy(self):
        return TensorStrategy()


class TestContext(OfTransformer):
    def make_strategy(self):
        return ContextStrategy()


class TestExpert(StrategyConformance):
    def make_strategy(self):
        return ExpertStrategy()

    def make_work(self):
        return ModelArrays(make_transformer(layers=2, experts=8, top_k=2), FP32)


class TestData(OfTransformer):
    def make_strategy(self):
        return DataStrategy()


class TestPipeline(OfTransformer):
    def make_strategy(self):
        return PipelineStrategy()


class TestFilter(OfConvolutions):
    def make_strategy(self):
        return FilterStrategy()


class TestChannel(OfConvolutions):
    def make_strategy(self):
        return ChannelStrategy()


class TestSpatial(OfConvolutions):
    def make_strategy(self):
        return SpatialStrategy()


def listed(profile, **degrees):
    plan = Oracle(make_cluster()).estimate(profile, batch=16, degrees=Degrees(**degrees))
    return [(each.operation, each.layer, each.phase, each.bytes, each.count) for each in plan.collectives]


def test_one_strategy_an_axis():
    """Every axis of `Degrees` has its strategy."""
    assert [strategy.axis.name for strategy in STRATEGIES] == list(Degrees.__dataclass_fields__)


def test_filters_gather_outputs_and_scatter_gradients():
    """All-gather of B y forward, reduce-scatter of B x backward but for the first layer (arXiv 2104.09075, and RS)."""
    found = listed(make_convolutions((3, 16, 32), 8), filter=4)
    y, x = 16 * 16 * 64 * 4, 16 * 16 * 64 * 4
    assert found == [
        ("all_gather", "conv0", "forward", y, 1),
        ("all_gather", "conv1", "forward", 2 * y, 1),
        ("reduce_scatter", "conv1", "backward", x, 1),
    ]


def test_channels_sum_outputs_and_gather_gradients():
    """All-reduce of B y forward, all-gather of B x backward, from the second layer on."""
    found = listed(make_convolutions((3, 16, 32), 8), channel=4)
    assert found == [
        ("all_reduce", "conv1", "forward", 16 * 32 * 64 * 4, 1),
        ("all_gather", "conv1", "backward", 16 * 16 * 64 * 4, 1),
    ]


@pytest.mark.parametrize(("stride", "above", "below"), [(1, 1, 1), (2, 1, 0)])
def test_halos(stride, above, below):
    """A 3x3 convolution of padding 1 needs a row above, and one below unless its stride is 2."""
    profile = make_convolutions((3, 16, 32), 16, stride=stride)
    work = ModelArrays(profile, FP32)
    assert halo_elements(work, work.layers[0], 2) == (above * 3 * 16, below * 3 * 16)
    assert halo_elements(work, work.layers[0], 1) == (0, 0)


def test_spatial_gathers_where_places_end():
    """Before the classifier the last output is gathered, and its gradient scattered; weights are summed by all."""
    found = listed(make_convolutions((3, 16, 32), 8), spatial=4)
    last = 16 * 32 * 64 * 4
    assert ("all_gather", "conv1", "forward", last, 1) in found
    assert ("reduce_scatter", "conv1", "backward", last, 1) in found
    assert any(operation == "all_reduce" and phase == "gradient" for operation, _, phase, _, _ in found)


def test_context_gathers_keys_and_values():
    """Those of all positions forward and once more backward, their gradients summed; at the end the sequence."""
    found = listed(make_transformer(layers=3), context=4)
    keys, whole = 16 * 2 * 128 * 256 * 4, 16 * 128 * 256 * 4
    along = [(operation, phase, size, count) for operation, _, phase, size, count in found if phase != "gradient"]
    assert sorted(along) == [
        ("all_gather", "backward", keys, 3),
        ("all_gather", "forward", whole, 1),
        ("all_gather", "forward", keys, 3),
        ("reduce_scatter", "backward", whole, 1),
        ("reduce_scatter", "backward", keys, 3),
    ]


def test_experts_exchange_tokens():
    """Two all-to-alls forward and two backward a block, of every token's vector to each of its experts."""
    profile = make_transformer(layers=3, experts=8, top_k=2)
    plan = Oracle(make_cluster()).estimate(profile, batch=16, degrees=Degrees(expert=4))
    sent = [each for each in plan.collectives if each.operation == "all_to_all"]
    assert [each.count for each in sent] == [2 * 3, 2 * 3]
    assert {each.bytes for each in sent} == {4 * 128 * 256 * 2 * 4}
    alone = Oracle(make_cluster()).estimate(profile, batch=16, degrees=Degrees(data=4))
    assert plan.state_bytes < alone.state_bytes


def test_hybrid_shares_multiply():
    """Tensor, context and data parallelism together leave of work and weights the product of what each leaves."""
    profile, oracle = make_transformer(layers=4), Oracle(make_cluster())
    one = oracle.estimate(profile, batch=16, degrees=Degrees(tensor=2), micro=8)
    both = oracle.estimate(profile, batch=16, degrees=Degrees(tensor=2, data=2), micro=8)
    assert both.breakdown.compute == pytest.approx(one.breakdown.compute / 2)
    assert both.state_bytes == one.state_bytes


def test_roles_of_separate_projections():
    """Queries, keys and values apart are all divided by output, the projection after attention by input."""
    work = ModelArrays(make_transformer(), FP32)
    roles = dict(zip((layer.name for layer in work.layers), work.roles, strict=True))
    assert roles["attention.in"] == roles["feedforward.in"] == "column"
    assert roles["attention.out"] == roles["feedforward.out"] == "row"
    assert roles["attention"] == roles["feedforward.activation"] == "inside"
    assert roles["attention.norm"] == roles["feedforward.residual"] == ""
