"""Many ranks save one checkpoint, and any number of them restores it, bit for bit; real processes on gloo."""

import random

import pytest
import torch
from rank_program import LAYOUTS, launch, restore, save

from trainwright.checkpoint import Manager
from trainwright.checkpoint.tools.convert import convert
from trainwright.checkpoint.tools.formats.format import equal_bits, format_named
from trainwright.checkpoint.tools.inspect import inspect, verify

COUNTS = (1, 2, 3, 4)

pytestmark = pytest.mark.timeout(600)  # processes that load torch, on machines that may be busy


def run(folder, world, *arguments, timeout=240):
    statuses, said = launch(folder, world, *arguments, timeout=timeout)
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
@pytest.mark.timeout(3600)
def test_any_number_to_any_other(tmp_path):
    """N ranks to M, N and M from 1 to 4, every layout to every other, dims that no number divides."""
    for count in COUNTS:
        run(tmp_path / f"from-{count}", count, "save_all")
    sources = [f"from-{count}/{layout}" for count in COUNTS for layout in LAYOUTS]
    for count in COUNTS:
        run(tmp_path, count, "restore_all", *sources, timeout=900)


@pytest.mark.slow
def test_meshes(tmp_path):
    """Meshes of two dims: of replicas one writes, and a tensor cut in two ways is one tensor."""
    run(tmp_path, 4, "meshes")
    for layout in ("hsdp", "grid"):
        restore(tmp_path / layout, "plain")
    shards = {one.name: one.shards for one in inspect(tmp_path / "grid").tensors}
    assert (shards["model.body.0.weight"], shards["model.body.0.bias"]) == (4, 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", [0, 1])
def test_killed_while_saving(tmp_path, victim):
    """A rank killed at any moment ends the run; the newest checkpoint is whole, and no older than the last reported."""
    chance = random.Random(victim)
    for _ in range(4):
        (tmp_path / "reported").unlink(missing_ok=True)
        statuses, _ = launch(tmp_path, 2, "endless", victim=victim, after=chance.uniform(0, 0.5))
        assert statuses[victim] == -9
        assert statuses[1 - victim] != 0
        reported = int((tmp_path / "reported").read_text().split()[-1])
        value = torch.zeros(1 << 18, dtype=torch.int64)
        with Manager(tmp_path / "endless", value=value) as manager:
            step = manager.restore(mode="best_effort").step
        assert step >= reported
        assert bool((value == step).all())
