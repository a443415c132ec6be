"""ParaDL's formulas against what its script printed (GitHub TruongThaoNguyen/paraDL-analysis, logs of ce36803b)."""

import pytest
from benchmarks.plan.paradl import ParaDL, Variant

from trainwright.errors import InputError
from trainwright.model.layer import Layer

# ResNet-50 as its layer table sums up: 49 divided convolutions and everything else in one layer. Two numbers of a table
# are kept in the first convolution; the formulas are sums over layers, so where they stand does not matter.
CONVOLUTIONS = tuple(
    Layer(
        name=f"conv{i}",
        kind="conv",
        input_elements=1,
        output_elements=9_096_256 - 48 if i == 0 else 1,
        weight_elements=20_686_016 - 48 if i == 0 else 1,
        forward_flops=0.9491758818903251 if i == 0 else 0.0,
    )
    for i in range(49)
)
REST = Layer(
    name="rest",
    kind="other",
    input_elements=0,
    output_elements=0,
    weight_elements=22_734_016 - 20_686_016,
    forward_flops=1 - 0.9491758818903251,
)


def resnet(**variant):
    return ParaDL(
        layers=(*CONVOLUTIONS, REST),
        seconds_per_sample=3.119502e-3,
        samples=1_280_000,
        divided=frozenset(range(49)),
        variant=Variant(**variant),
    )


# AlexNet's table: x, w and y elements, operations; the convolutions are divided.
ALEXNET = (
    ("conv", 153228, 34848, 279936, 406501920),
    ("pointwise", 279936, 0, 279936, 559872),
    ("pool", 279936, 0, 69984, 120932352),
    ("conv", 69984, 614400, 186624, 1792204800),
    ("pointwise", 186624, 0, 186624, 373248),
    ("pool", 186624, 0, 43264, 199360512),
    ("conv", 43264, 884736, 64896, 598966272),
    ("pointwise", 64896, 0, 64896, 129792),
    ("conv", 64896, 1327104, 64896, 898449408),
    ("pointwise", 64896, 0, 64896, 129792),
    ("conv", 64896, 884736, 43264, 598966272),
    ("pointwise", 43264, 0, 43264, 86528),
    ("pool", 43264, 0, 9216, 42467328),
    ("linear", 9216, 37748736, 4096, 113246208),
    ("pointwise", 4096, 0, 4096, 8192),
    ("other", 4096, 0, 4096, 0),
    ("linear", 4096, 16777216, 4096, 50331648),
    ("pointwise", 4096, 0, 4096, 8192),
    ("other", 4096, 0, 4096, 0),
    ("linear", 4096, 4096000, 1000, 12288000),
)


def alexnet(**variant):
    layers = tuple(
        Layer(name=str(i), kind=kind, input_elements=x, weight_elements=w, output_elements=y, forward_flops=flops)
        for i, (kind, x, w, y, flops) in enumerate(ALEXNET)
    )
    return ParaDL(
        layers=layers,
        seconds_per_sample=6.10938e-4,
        samples=1_280_000,
        divided=frozenset(i for i, layer in enumerate(layers) if layer.kind == "conv"),
        variant=Variant(**variant),
    )


# COSMOFLOW 256: the two divided layers and the pooling between; what follows counts nothing in ParaDL's data+spatial.
COSMOFLOW = (
    ("conv", 4, 16, 3, 256, 256, 67108864, 1728, 268435456),
    ("pointwise", 16, 16, 0, 256, 256, 268435456, 0, 268435456),
    ("pool", 16, 16, 2, 256, 128, 268435456, 0, 33554432),
    ("conv", 16, 32, 3, 128, 128, 33554432, 13824, 67108864),
)


class TestPublishedFigures:
    """The four figures that the specification of the benchmark names, and rows of the printed tables."""

    @pytest.mark.parametrize(
        ("devices", "compute", "total"), [(64, 62.39004, 68.068326395), (1024, 3.8993775, 5.4577903296)]
    )
    def test_data(self, devices, compute, total):
        """Data parallelism of ResNet-50, 64 samples a device."""
        got = resnet(cable_seconds=15e-6).data(devices, 64 * devices)
        assert got.compute_seconds == pytest.approx(compute, rel=1e-9)
        assert got.seconds == pytest.approx(total, rel=1e-9)

    @pytest.mark.parametrize(
        ("devices", "compute", "total"), [(64, 71.9027962855, 345.765853685), (1024, 4.54425672524, 23.9467476321)]
    )
    def test_data_filter(self, devices, compute, total):
        """Groups of four devices divide filters of ResNet-50, 64 samples a group."""
        got = resnet().data_filter(devices, 16 * devices)
        assert got.compute_seconds == pytest.approx(compute, rel=1e-9)
        assert got.seconds == pytest.approx(total, rel=1e-9)

    def test_data_filter_of_an_earlier_state(self):
        """Gradients of divided weights only, each link shared by four: another log of the same case."""
        got = resnet(contention=4.0, divided_gradients=True).data_filter(64, 1024)
        assert got.seconds == pytest.approx(231.020269685, rel=1e-9)

    @pytest.mark.parametrize(
        ("devices", "memory", "compute", "communication"),
        [(2, 7250874432, 434.663007094, 98.5825176), (64, 7016230036, 98.1796752171, 845.2868886)],
    )
    def test_filter(self, devices, memory, compute, communication):
        """AlexNet's filters divided, 512 samples, memory included."""
        got = alexnet(cable_seconds=15e-6).filter(devices, 512)
        assert got.compute_seconds == pytest.approx(compute, rel=1e-9)
        assert got.communication_seconds == pytest.approx(communication, rel=1e-9)
        assert got.memory_bytes == pytest.approx(memory, rel=1e-9)

    def test_channel_is_filter(self):
        """ParaDL prints the same numbers for both."""
        assert alexnet().channel(8, 512) == alexnet().filter(8, 512)

    def test_serial(self):
        """One device: no exchange."""
        got = alexnet().serial(512)
        assert got.seconds == pytest.approx(782.00064)
        assert got.memory_bytes == 7507837184
        assert got.communication_seconds == 0

    def test_data_spatial(self):
        """CosmoFlow on volumes of 256: halos through host memory, gather, reduction in the node and between nodes."""
        layers = [
            Layer(
                name=str(i),
                kind=kind,
                channels=channels,
                filters=filters,
                kernel=(kernel,) * 3,
                input_size=(size,) * 3,
                output_size=(out,) * 3,
                input_elements=x,
                weight_elements=w,
                output_elements=y,
                forward_flops={0: 115964118720.0, 1: 536870912.0, 2: 8589934592.0, 3: 115964130816.0}[i],
            )
            for i, (kind, channels, filters, kernel, size, out, x, w, y) in enumerate(COSMOFLOW)
        ]
        rest = Layer(
            name="rest",
            kind="other",
            input_elements=1,
            output_elements=1,
            weight_elements=2128064 - 1728 - 13824,
            forward_flops=307061196544.0 - sum(layer.forward_flops for layer in layers),
        )
        formulas = ParaDL(
            layers=(*layers, rest), seconds_per_sample=0.263517898, samples=1584, divided=frozenset((0, 3))
        )
        got = formulas.data_spatial(8, 16)
        assert got.communication_seconds == pytest.approx(47.9206517645, rel=1e-9)
        assert got.memory_bytes == 60683437568


class TestProperties:
    """What the formulas keep, and what they refuse."""

    def test_one_group_of_hybrids_is_its_inner_strategy(self):
        """Data+filter on one group equals filter, but for weights that ParaDL's memory divides twice."""
        hybrid, pure = alexnet().data_filter(4, 512), alexnet().filter(4, 512)
        assert hybrid.seconds == pytest.approx(pure.seconds)
        assert hybrid.memory_bytes > pure.memory_bytes

    def test_spatial_by_hand(self):
        """One convolution on two devices: four latencies and two rows of a halo, a gather, a reduction."""
        layer = Layer(
            name="conv",
            kind="conv",
            input_elements=300,
            output_elements=200,
            weight_elements=50,
            forward_flops=1.0,
            channels=3,
            kernel=(5, 5),
            input_size=(10, 10),
            output_size=(10, 10),
        )
        formulas = ParaDL(layers=(layer,), seconds_per_sample=1.0, samples=8, divided=frozenset({0}))
        got = formulas.spatial(2, 4)
        beta = 4 / 50e9
        halo = 4 * 9e-6 + 2 * 2 * (10 + 10) * beta
        gather, reduction = 2 * (9e-6 + 4 * 200 * beta / 2), 2 * (9e-6 + 50 * beta / 2)
        assert got.communication_seconds == pytest.approx(2 * (halo + gather + reduction))
        assert got.compute_seconds == 4
        assert got.memory_bytes == 8 * (4 * 250 + 50)

    def test_devices_that_are_no_groups(self):
        """Groups must divide the devices."""
        with pytest.raises(InputError, match="6 devices in groups of 4"):
            alexnet().data_filter(6, 512)
