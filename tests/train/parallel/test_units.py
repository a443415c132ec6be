"""What FSDP gathers at a time: blocks of lists and sequences, else layers."""

import pytest
from torch import nn

from trainwright.train.parallel.blocks import blocks_of, fsdp_groups_of


class Block(nn.Module):
    """With a list and a sequence inside, which are no blocks."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(4), nn.LayerNorm(4)])
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())


class Staged(nn.Module):
    """Sequences of blocks as attributes, as residual networks have them."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.first, self.second = (nn.Sequential(Block(), Block()) for _ in range(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(4, 4))


def tied():
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    other.weight = one.weight
    return nn.Sequential(one, nn.ReLU(), nn.Linear(4, 4), other)


@pytest.mark.parametrize(
    ("model", "blocks", "units"),
    [
        (nn.Sequential(Block(), Block()), ["0", "1"], None),
        (nn.Sequential(nn.Linear(4, 4), Block(), nn.ReLU(), Block()), ["1", "3"], None),
        (nn.Sequential(nn.Linear(4, 4), nn.Sequential(Block(), Block())), ["1.0", "1.1"], None),
        (nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2))), ["0", "1"], None),
        (Staged(), ["first.0", "first.1", "second.0", "second.1"], None),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), [], ["0", "2"]),
        (tied(), [], ["2"]),
        (nn.Linear(4, 4), [], []),
    ],
)
def test_blocks_and_units(model, blocks, units):
    """The outermost that are made of modules; where there are none, layers that share nothing."""
    names = {module: name for name, module in model.named_modules()}
    assert [names[each] for each in blocks_of(model)] == blocks
    assert [names[each] for each in fsdp_groups_of(model)] == (blocks if units is None else units)
