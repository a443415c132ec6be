"""What ranks report is put together, or refused in a sentence that names rank and tensor; no processes needed."""

import pytest

from trainwright.checkpoint.manifest import FileRecord, Manifest, ShardRecord, TensorRecord
from trainwright.checkpoint.ranks.merging import (
    RankReport,
    merge_reports,
    other_ranks_names,
    place_record,
    tree_of_rank,
)
from trainwright.checkpoint.ranks.tensor_slices import TensorShare, TensorSlice
from trainwright.errors import CheckpointCorruptError, CheckpointError

MANIFEST = Manifest(step=3, lease=2)


def tensor(name, rank, shape, offsets, lengths, *, dtype="float32"):
    local = ShardRecord(file=f"rank-{rank}", start=0, bytes=4, digest="", offsets=(0,) * len(lengths), lengths=lengths)
    record = TensorRecord(name=name, dtype=dtype, shape=lengths, shards=(local,))
    return place_record(record, TensorShare(shape=shape, box=TensorSlice(offsets, lengths), writes=True))


def report(rank, *tensors, **more):
    file = FileRecord(name=f"rank-{rank}", bytes=4, chunks=("",))
    return RankReport(**{"rank": rank, "step": 3, "lease": 2, "file": file, "tensors": tensors, **more})


def test_parts_become_one_tensor():
    """Shards are in the order of their boxes; what two ranks both wrote counts once; all files are listed."""
    top, bottom = tensor("w", 1, (3, 2), (0, 0), (2, 2)), tensor("w", 0, (3, 2), (2, 0), (1, 2))
    manifest, own = merge_reports(MANIFEST, [report(0, bottom), report(1, top), report(2, top)])
    (record,) = manifest.tensors
    assert record.shape == (3, 2)
    assert [(shard.file, shard.offsets, shard.lengths) for shard in record.shards] == [
        ("rank-1", (0, 0), (2, 2)),
        ("rank-0", (2, 0), (1, 2)),
    ]
    assert [file.name for file in manifest.files] == ["rank-0", "rank-1", "rank-2"]
    assert (manifest.world_size, own) == (3, {})


def test_holes_and_other_models():
    part = tensor("w", 0, (3,), (0,), (2,))
    with pytest.raises(CheckpointError, match="the ranks hold 2 of the 3 values of w"):
        merge_reports(MANIFEST, [report(0, part), report(1)])
    with pytest.raises(CheckpointError, match=r"w is float16 \(3,\) on rank 1 and float32 \(3,\) before it"):
        merge_reports(MANIFEST, [report(0, part), report(1, tensor("w", 1, (3,), (2,), (1,), dtype="float16"))])


def test_other_steps_and_failures():
    with pytest.raises(CheckpointError, match="rank 1 saves step 4 of lease 2, rank 0 step 3 of lease 2"):
        merge_reports(MANIFEST, [report(0), report(1, step=4)])
    with pytest.raises(OSError, match="No space"):
        merge_reports(MANIFEST, [report(0), report(1, error=OSError(28, "No space left on device"))])
    with pytest.raises(CheckpointError, match="the process died"):
        merge_reports(MANIFEST, [report(0), report(1, error=CheckpointCorruptError("the process died"))])


@pytest.mark.parametrize(
    ("sums", "words"),
    [((5, 5, 6), "rank 2 differs"), ((5, 6, 5, 7, 5), "ranks 1, 3 differ"), ((5, 6), "ranks 0, 1 differ")],
)
def test_replicas_that_differ(sums, words):
    """The minority is named; where there is none, all are."""
    reports = [report(rank, sums={("w", ()): total}) for rank, total in enumerate(sums)]
    with pytest.raises(CheckpointError, match=f"w is not the same on all ranks: {words}"):
        merge_reports(MANIFEST, reports)
    same = [report(rank, sums={("w", ()): 5, ("w", (rank,)): rank}) for rank in range(3)]
    assert merge_reports(MANIFEST, same)[0].world_size == 3


def test_ties_of_ranks_without_a_part():
    """A rank that holds nothing of a tied tensor does not know that it is one."""
    weight = tensor("w", 0, (1,), (0,), (1,))
    manifest = Manifest(step=3, lease=2, ties={"tied": "w"})
    found, _ = merge_reports(manifest, [report(0, weight), report(1, tensor("tied", 1, (1,), (0,), (1,)))])
    assert [record.name for record in found.tensors] == ["w"]


def test_values_of_a_rank():
    """Each rank has its own back; on another number of ranks all have the first one's, and are told."""
    tree = {"rng": "zero", "rng@1": "one", "note": {"a": 0}, "note@1": {"a": 1}, "same": 7}
    assert tree_of_rank(tree, saved=2, rank=0, world=2) == ({"rng": "zero", "note": {"a": 0}, "same": 7}, [])
    assert tree_of_rank(tree, saved=2, rank=1, world=2) == ({"rng": "one", "note": {"a": 1}, "same": 7}, [])
    found, differences = tree_of_rank(tree, saved=2, rank=1, world=4)
    assert found == {"rng": "zero", "note": {"a": 0}, "same": 7}
    assert [str(one) for one in differences] == [
        "note was '2 ranks' and is '4 ranks' (goes on from other values)",
        "rng was '2 ranks' and is '4 ranks' (draws other random numbers)",
    ]
    names = ["rng.torch", "rng@1.torch", "model.w", "rng@2.torch"]
    manifest = Manifest(step=1, world_size=3, tensors=tuple(tensor(name, 0, (1,), (0,), (1,)) for name in names))
    assert other_ranks_names(manifest, rank=1, world=3) == {"rng@2.torch"}
    assert other_ranks_names(manifest, rank=1, world=2) == {"rng@1.torch", "rng@2.torch"}
