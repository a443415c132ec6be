"""What convolutions borrow while they run is foreseen, whichever kernel does them."""

import gc
import os
from functools import partial

import pytest
import torch
from torch import nn

from trainwright.model.trace.recorder import TensorShape
from trainwright.model.trace.workspaces import call_measured, workspace_bytes

GRANULE = 4096
LAYERS = {
    "small volume": (nn.Conv3d(8, 8, 3, padding=1), (1, 8, 16, 16, 16)),
    "small volume, strided": (nn.Conv3d(8, 16, 3, stride=2, padding=1), (1, 8, 16, 16, 16)),
    "small volume, 1 x 1": (nn.Conv3d(8, 16, 1), (1, 8, 8, 8, 8)),
    "small image": (nn.Conv2d(8, 8, 3, padding=1), (1, 8, 24, 24)),
    "small image, dilated": (nn.Conv2d(8, 8, 3, padding=2, dilation=2), (1, 8, 24, 24)),
    "small series": (nn.Conv1d(8, 32, 5, padding=2), (1, 8, 512)),
    "double precision": (nn.Conv2d(8, 8, 3, padding=1).double(), (4, 8, 24, 24)),
    "transposed": (nn.ConvTranspose3d(16, 8, 2, stride=2), (1, 16, 8, 8, 8)),
    "kernels from padding to padding": (nn.Conv3d(32, 32, 5, padding=2), (2, 32, 3, 3, 3)),
    "channels innermost": (nn.Conv2d(96, 128, 3, padding=1), (2, 96, 6, 6)),
    "channels innermost, strided": (nn.Conv2d(64, 128, 2, stride=2), (2, 64, 8, 8)),
    "several samples": (nn.Conv3d(16, 16, 3, padding=1), (4, 16, 8, 8, 8)),
}
if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
    LAYERS |= {
        "kernels higher than the image": (nn.Conv2d(64, 128, 3, padding=1), (4, 64, 2, 5)),
        "kernels as high as the image": (nn.Conv2d(64, 128, 3, padding=1), (4, 64, 3, 5)),
        "padded volume": (nn.Conv3d(32, 64, 3, padding=1), (4, 32, 5, 5, 5)),
        "volume without padding": (nn.Conv3d(32, 64, 3), (4, 32, 3, 5, 5)),
    }


def borrowed(step):
    """Return the most bytes that an operation holds, and those of its results."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    activity = torch.profiler.ProfilerActivity.CPU
    # Torch 2.11 warns unless it is told to keep events.
    settings = {"activities": [activity], "profile_memory": True, "acc_events": True}
    with torch.no_grad(), torch.profiler.profile(**settings) as profiler:
        made = step()
    events = [each for each in profiler.profiler.kineto_results.events() if each.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak - sum(each.nbytes for each in made)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", LAYERS)
def test_convolutions(name, threads, request):
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(threads)
    layer, shape = LAYERS[name]
    source = torch.randn(shape, dtype=layer.weight.dtype)
    if "innermost" in name:
        source = source.to(memory_format=torch.channels_last)
    settings = [
        list(layer.stride), list(layer.padding), list(layer.dilation), layer.transposed, list(layer.output_padding),
        layer.groups,
    ]  # fmt: skip
    forward = [source, layer.weight.detach(), layer.bias.detach(), *settings]
    result = torch.ops.aten.convolution(*forward)
    backward = [
        torch.randn_like(result), source, layer.weight.detach(), [layer.bias.numel()], *settings, [True] * 3,
    ]  # fmt: skip
    for func, arguments in ((torch.ops.aten.convolution, forward), (torch.ops.aten.convolution_backward, backward)):
        made = tensors_of(func(*arguments))
        shapes = [TensorShape.of(each) if isinstance(each, torch.Tensor) else each for each in arguments]
        said = workspace_bytes(func.default, shapes, [TensorShape.of(each) for each in made])
        lent = borrowed(lambda func=func, arguments=arguments: tensors_of(func(*arguments)))
        # Never less, and little more: a copy of an operand that only some kernels make.
        assert lent - GRANULE <= said <= 1.11 * lent + source.nbytes, func


@pytest.mark.parametrize("dims", [[0], [1], [2], [0, 1], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("turned", [False, True])
def test_fourier_transforms(dims, turned):
    source = torch.randn(8, 32, 48).transpose(*(0, 2) if turned else (0, 0))
    real, complex_ = torch.ops.aten._fft_r2c, torch.ops.aten._fft_c2c
    there = real(source, dims, 0, onesided=True)
    back = torch.ops.aten._fft_c2r
    size = source.shape[dims[-1]]
    for func, *arguments in (
        (real, source, dims, 0, True),
        (complex_, there, dims, 0, True),
        (back, there, dims, 0, size),
    ):
        made = func(*arguments)
        said = workspace_bytes(func.default, [TensorShape.of(arguments[0]), *arguments[1:]], [TensorShape.of(made)])
        lent = borrowed(lambda func=func, arguments=arguments: [func(*arguments)])
        assert lent - GRANULE <= said <= lent + arguments[0].nbytes, (func, dims)


def tensors_of(made):
    return [made] if isinstance(made, torch.Tensor) else made


def test_a_garbage_collection_is_no_workspace():
    """What Python drops while an operation runs was there before it."""

    def work_and_collect(x):
        result = torch.relu(x)
        gc.collect()
        return result

    cycle = []
    cycle.append(cycle)
    # Taken while torch counts, so that it knows the size.
    cycle.append(call_measured(torch.clone, (torch.zeros(1 << 20),), {})[0])
    gc.disable()
    try:
        del cycle
        assert call_measured(work_and_collect, (torch.zeros(100),), {})[1] == 0
    finally:
        gc.enable()
