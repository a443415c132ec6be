"""Every strategy comes to what one device comes to: losses, gradients, and parameters after several steps."""

from functools import partial

import pytest
import small_models
import torch
from rank_group import on_ranks, plan_of
from serial import distance

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

IMAGE, VOLUME = (3, 18, 16), (1, 9, 8, 8)


def case(make, shape, target, *, dtype=torch.float64, sync_bn=False, parts=1, plan=None, **degrees):
    def check(rank, world):
        settings = {name: world if value == "all" else value for name, value in degrees.items()}
        return distance(
            make, plan_of(**settings, **(plan or {})), shape, target, dtype=dtype, sync_bn=sync_bn, parts=parts
        )

    return check


MLP = (small_models.mlp, (6,), (4,))
CNN = (small_models.convolutions, IMAGE, (5,))
CNN_BN = (partial(small_models.convolutions, norm=True), IMAGE, (5,))
CNN3D = (small_models.volumes, VOLUME, (4,))
UNET = (small_models.UNet, (3, 16, 12), (4, 16, 12))

ON_TWO = {
    "data": case(*MLP, data=2),
    "data, convolutions": case(*CNN, data=2),
    "data, micro-batches": case(*MLP, data=2, parts=2),
    "data, synchronised norms": case(*CNN_BN, data=2, sync_bn=True),
    "ZeRO 1": case(*MLP, data=2, plan={"zero": 1}),
    "ZeRO 2": case(*MLP, data=2, plan={"zero": 2}),
    "ZeRO 3": case(*MLP, data=2, plan={"zero": 3}),
    "ZeRO 1, micro-batches": case(*MLP, data=2, plan={"zero": 1}, parts=2),
    "ZeRO 2, micro-batches": case(*MLP, data=2, plan={"zero": 2}, parts=2),
    "ZeRO 3, micro-batches": case(*MLP, data=2, plan={"zero": 3}, parts=4),
    "filter": case(*MLP, filter=2),
    "filter, convolutions": case(*CNN, filter=2),
    "filter, norms": case(*CNN_BN, filter=2),
    "filter, volumes": case(*CNN3D, filter=2),
    "filter, U-Net": case(*UNET, filter=2),
    "channel": case(*MLP, channel=2),
    "channel, convolutions": case(*CNN_BN, channel=2),
    "channel, volumes": case(*CNN3D, channel=2),
    "channel, micro-batches": case(*MLP, channel=2, parts=2),
    "spatial": case(*CNN, spatial=2),
    "spatial, volumes": case(*CNN3D, spatial=2),
    "spatial, synchronised norms": case(*CNN_BN, spatial=2, sync_bn=True),
    "spatial, U-Net": case(*UNET, spatial=2),
    "spatial, single precision": case(*CNN, spatial=2, dtype=torch.float32),
    "filter, single precision": case(*CNN, filter=2, dtype=torch.float32),
    "channel, single precision": case(*CNN, channel=2, dtype=torch.float32),
}
ON_FOUR = {
    "data": case(*MLP, data=4),
    "hybrid ZeRO": case(*MLP, data=4, plan={"zero": 3, "shard": 2}),
    "filter": case(*CNN_BN, filter=4),
    "channel": case(*CNN_BN, channel=4),
    "spatial": case(*CNN, spatial=4),
    "spatial, volumes": case(*CNN3D, spatial=4),
    "spatial, U-Net": case(*UNET, spatial=4),
    "data+filter": case(*CNN, data=2, filter=2),
    "data+filter, norms": case(*CNN_BN, data=2, filter=2, sync_bn=True),
    "data+filter, micro-batches": case(*MLP, data=2, filter=2, parts=2),
    "data+channel": case(*CNN, data=2, channel=2),
    "data+spatial": case(*CNN, data=2, spatial=2),
    "data+spatial, micro-batches": case(*CNN, data=2, spatial=2, parts=2),
    "data+spatial, synchronised norms": case(*CNN_BN, data=2, spatial=2, sync_bn=True),
    "data+spatial, single precision": case(*CNN, data=2, spatial=2, dtype=torch.float32),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder, known = tmp_path_factory.mktemp("ranks"), {}

    def get(world):
        if world not in known:
            known[world] = on_ranks(world, {2: ON_TWO, 4: ON_FOUR}[world], folder)
        return known[world]

    return get


@pytest.mark.parametrize(("world", "name"), [(2, name) for name in ON_TWO] + [(4, name) for name in ON_FOUR])
def test_equal_to_one_device(found, world, name):
    """To 1e-10 in double precision, to 1e-5 in single."""
    for worst in found(world)[name]:
        assert isinstance(worst, float), worst
        assert worst <= (1e-5 if "single" in name else 1e-10)
