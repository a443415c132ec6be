"""What a restore on other ranks does to the generators of this process."""

import random
from dataclasses import replace

import numpy as np
import torch

from trainwright.checkpoint.manifest import Manifest
from trainwright.checkpoint.ranks.ranks import SingleRank

MANIFEST = Manifest(step=12, epoch=3, trial=7, lease=2, world_size=2)


def draws(manifest, *, rank=0):
    """Return what each generator draws after a restore from a checkpoint of two ranks; before, they are anywhere."""
    random.seed()
    np.random.seed(None)  # noqa: NPY002 -- the generator that is meant
    torch.seed()
    ranks = SingleRank()
    ranks.rank = rank
    ranks.reseed_generators(manifest)
    return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002 -- likewise


def test_every_generator_is_repeatable():
    assert draws(MANIFEST) == draws(MANIFEST)


def test_ranks_and_steps_draw_otherwise():
    several = [draws(MANIFEST), draws(MANIFEST, rank=1), draws(replace(MANIFEST, step=13))]
    for one in zip(*several, strict=True):
        assert len({*one}) == 3


def test_on_as_many_ranks_they_are_left_alone():
    same = replace(MANIFEST, world_size=1)
    assert draws(same) != draws(same)
