"""Many ranks save one checkpoint, and any number of them restores it, bit for bit; real processes on gloo."""

import pytest
import torch
from rank_program import LAYOUTS, launch, restore, save

from trainwright.checkpoint import Manager
from trainwright.checkpoint.convert import convert
from trainwright.checkpoint.formats import format_named
from trainwright.checkpoint.formats.tensors import equal_bits
from trainwright.checkpoint.inspect import inspect
from trainwright.checkpoint.verify import verify

COUNTS = (1, 2, 3, 4)


def run(folder, world, *arguments):
    statuses, said = launch(folder, world, *arguments)
    assert statuses == [0] * world, said


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Run everything on two ranks, once; a single process saved `plain` and `random-1` before."""
    folder = tmp_path_factory.mktemp("two")
    save(folder / "plain", "plain")
    with Manager(folder / "random-1", value=torch.ones(1)) as manager:
        manager.save(wait=True)
    run(folder, 2, "everything")
    return folder


def test_two_ranks(two):
    """All of `everything` held on both ranks: its functions say what."""
    assert {path.name for path in (two / "fsdp").iterdir()} == {"step-000000000005"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_to_one(two, layout):
    """One process restores what two saved in any layout."""
    restored = restore(two / layout, "plain")
    assert restored.manifest.world_size == 2
    assert [one.item for one in restored.differences] == ["rng"]


def test_files_of_two_ranks(two):
    """Each rank wrote one file, of about half the bytes; what is tied or shared is there once."""
    found = inspect(two / "fsdp")
    shards = {one.name: one.shards for one in found.tensors}
    assert (shards["model.head.weight"], shards["model.body.1.running_mean"]) == (2, 1)
    for layout in ("fsdp", "ddp"):
        sizes = [path.stat().st_size for path in (two / layout / "step-000000000005").glob("rank-*")]
        assert len(sizes) == 2
        assert max(sizes) < 2 * min(sizes)
    assert verify(two / "fsdp").good


def test_sharded_checkpoint_in_one_file(two, tmp_path):
    """What ranks saved is converted as anything else: whole tensors under their names."""
    convert(two / "shard1", tmp_path / "one.safetensors", "safetensors")
    found = format_named("safetensors").read(tmp_path / "one.safetensors")
    convert(two / "plain", tmp_path / "two.safetensors", "safetensors")
    expected = format_named("safetensors").read(tmp_path / "two.safetensors")
    names = [name for name in expected if name.startswith(("model", "optimizer"))]
    assert len(names) > 20
    assert all(equal_bits(found[name], expected[name]) for name in names)


@pytest.mark.slow
def test_save_of_one_rank_alone(tmp_path):
    run(tmp_path, 2, "alone")


@pytest.mark.slow
def test_any_number_to_any_other(tmp_path):
    """N ranks to M, N and M from 1 to 4, every layout to every other, dims that no number divides."""
    for count in COUNTS:
        run(tmp_path / f"from-{count}", count, "save_all")
    sources = [f"from-{count}/{layout}" for count in COUNTS for layout in LAYOUTS]
    for count in COUNTS:
        run(tmp_path, count, "restore_all", *sources)
