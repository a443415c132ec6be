"""Windows of rows: each rank's part of a convolution, from its window alone, is that part of the whole."""

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn.functional import conv1d, pad

from trainwright.train.parallel.convolution.halo import even_bounds, halo_windows

SIZES = st.integers(1, 9)


KERNELS = st.fixed_dictionaries(
    {"kernel": st.integers(1, 4), "stride": st.integers(1, 3), "dilation": st.integers(1, 3)},
)


@given(SIZES, KERNELS, st.integers(0, 6), st.integers(1, 5))
def test_parts_of_a_convolution_are_those_of_the_whole(size, sizes, padding, world):
    kernel, stride, dilation = sizes.values()
    rows, taps = torch.arange(1.0, size + 1).reshape(1, 1, -1), torch.arange(1.0, kernel + 1).reshape(1, 1, -1)
    reach = dilation * (kernel - 1) + 1
    assume(size + 2 * padding >= reach)
    whole = conv1d(rows, taps, stride=stride, padding=padding, dilation=dilation)
    out = even_bounds(whole.shape[-1], world)
    found = halo_windows(out, size, kernel=kernel, stride=stride, dilation=dilation, before=padding)
    for rank, window in enumerate(found):
        wanted = whole[..., out[rank] : out[rank + 1]]
        if wanted.shape[-1] == 0:
            continue
        part = pad(rows[..., window.start : window.stop], (window.before, window.after))
        assert torch.equal(conv1d(part, taps, stride=stride, dilation=dilation), wanted)
