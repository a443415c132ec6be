"""Boxes put together from other boxes are what slices of the whole tensor are; damage in what is read is found."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.checkpoint.digest import digest_bytes
from trainwright.checkpoint.manifest import FileRecord, Manifest, ShardRecord, TensorRecord
from trainwright.checkpoint.ranks.tensor_slices import TensorSlice, open_slices
from trainwright.checkpoint.tools.formats.format import equal_bits
from trainwright.errors import CheckpointCorruptError
from trainwright.testing.checkpoint_format import bits


def write(folder, tensors, grid, chunk):
    """Cut every tensor into a grid of boxes, box i in file i, and each file into chunks of so many bytes."""
    content, records = {}, []
    for name, tensor in tensors.items():
        pieces = [torch.arange(size).tensor_split(parts) for size, parts in zip(tensor.shape, grid, strict=False)]
        shards = []
        for number, ranges in enumerate(itertools.product(*pieces)):
            lengths = tuple(len(part) for part in ranges)
            if 0 in lengths:
                continue
            offsets = tuple(int(part[0]) for part in ranges)
            data = tensor[tuple(slice(low, low + size) for low, size in zip(offsets, lengths, strict=True))]
            own = bytes(data.contiguous().reshape(-1).view(torch.uint8).numpy())
            held = content.setdefault(f"file-{number}", bytearray(b"header"))
            place = {"file": f"file-{number}", "start": len(held), "bytes": len(own), "digest": digest_bytes(own)}
            shards.append(ShardRecord(**place, offsets=offsets, lengths=lengths))
            held += own
        dtype = str(tensor.dtype).removeprefix("torch.")
        records.append(TensorRecord(name=name, dtype=dtype, shape=tuple(tensor.shape), shards=tuple(shards)))
    files = []
    for name, held in content.items():
        (folder / name).write_bytes(held)
        ends = [*range(chunk, len(held), chunk), len(held)]
        chunks = [digest_bytes(held[start:stop]) for start, stop in itertools.pairwise([0, *ends])]
        files.append(FileRecord(name=name, bytes=len(held), chunks=tuple(chunks), ends=tuple(ends)))
    return Manifest(step=1, files=tuple(files), tensors=tuple(records))


shapes = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)


@settings(max_examples=150)
@given(data=st.data(), shape=shapes, chunk=st.integers(1, 40))
def test_any_box_of_any_grid(data, shape, chunk, tmp_path_factory):
    """A box is the slice of the whole, whatever boxes and chunks are on disk."""
    tensor = bits(data.draw(st.sampled_from(["float32", "uint8", "bfloat16", "complex128"])), shape, seed=chunk)
    grid = data.draw(st.tuples(*(st.integers(1, size + 1) for size in shape)))
    folder = tmp_path_factory.mktemp("grid")
    manifest = write(folder, {"w": tensor}, grid, chunk)
    offsets = data.draw(st.tuples(*(st.integers(0, size) for size in shape)))
    lengths = data.draw(st.tuples(*(st.integers(0, size - low) for size, low in zip(shape, offsets, strict=True))))
    box = TensorSlice(offsets, lengths)
    with open_slices(folder, manifest) as reader:
        expected = tensor[box.within(TensorSlice.whole(shape))]
        assert equal_bits(reader.read(manifest.tensors[0], box), expected)
        place = torch.zeros(*(size + 1 for size in lengths), 2, dtype=tensor.dtype)[..., 1]
        part = place[tuple(slice(0, size) for size in lengths)]
        reader.fill([(manifest.tensors[0], box, part)])
        assert equal_bits(part, expected)


def test_meeting():
    """What two boxes have in common, against sets of points."""
    sides = [(low, size) for low in range(4) for size in range(4)]
    for one, two in itertools.product(itertools.product(sides, sides), repeat=2):
        pair = [TensorSlice(*zip(*sides, strict=True)) for sides in (one, two)]
        points = [set(itertools.product(*(range(low, low + size) for low, size in sides))) for sides in (one, two)]
        common = pair[0].intersect(pair[1])
        if common is None:
            assert not points[0] & points[1]
        else:
            ranges = (range(low, low + size) for low, size in zip(*common, strict=True))
            assert set(itertools.product(*ranges)) == points[0] & points[1]


def test_numbers_and_nothing(tmp_path):
    """A tensor without dims is a box too, and so is an empty one."""
    manifest = write(tmp_path, {"number": torch.tensor(3.5)}, (), 100)
    nothing = TensorRecord(name="nothing", dtype="int8", shape=(0, 3), shards=())
    with open_slices(tmp_path, manifest) as reader:
        assert reader.read(manifest.tensors[0], TensorSlice((), ())) == 3.5
        assert reader.read(nothing, TensorSlice.whole((0, 3))).shape == (0, 3)


def test_only_what_is_read_is_compared(tmp_path):
    """Damage in a chunk that a box needs is found; elsewhere it does not matter, with check=False nowhere."""
    tensor = torch.arange(64.0).reshape(16, 4)
    manifest = write(tmp_path, {"w": tensor}, (2, 1), 32)
    path = tmp_path / "file-1"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    record = manifest.tensors[0]
    with open_slices(tmp_path, manifest) as reader:
        assert torch.equal(reader.read(record, TensorSlice((0, 0), (14, 4))), tensor[:14])
        with pytest.raises(CheckpointCorruptError, match=r"file-1 is damaged in chunk 4 \(bytes 128 to 134, w\)"):
            reader.read(record, TensorSlice((15, 0), (1, 4)))
    with open_slices(tmp_path, manifest, check=False) as reader:
        assert not torch.equal(reader.read(record, TensorSlice.whole((16, 4))), tensor)


def test_missing_parts(tmp_path):
    """A file that is gone or cut, and boxes that leave a hole, are damage."""
    manifest = write(tmp_path, {"w": torch.ones(8, 4)}, (2, 1), 1000)
    whole = TensorSlice.whole((8, 4))
    record = manifest.tensors[0]
    hole = TensorRecord(name="w", dtype=record.dtype, shape=record.shape, shards=record.shards[:1])
    with open_slices(tmp_path, manifest) as reader, pytest.raises(CheckpointCorruptError, match="w has 16 of the 32"):
        reader.read(hole, whole)
    (tmp_path / "file-0").write_bytes((tmp_path / "file-0").read_bytes()[:-1])
    with open_slices(tmp_path, manifest) as reader, pytest.raises(CheckpointCorruptError, match="file-0 is damaged"):
        reader.read(record, whole)
    (tmp_path / "file-0").unlink()
    with (
        open_slices(tmp_path, manifest) as reader,
        pytest.raises(CheckpointCorruptError, match="file-0 cannot be read"),
    ):
        reader.read(record, whole)
