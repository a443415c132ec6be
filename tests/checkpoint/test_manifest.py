"""The manifest: it comes back as it was, and a change of any bit of it is seen."""

import itertools
import json
from pathlib import Path

import pytest

from trainwright.checkpoint.digest import CHUNK_BYTES, chunk_ranges, combine_digests, digest_bytes, digest_file
from trainwright.checkpoint.manifest import FileRecord, Manifest, ShardRecord, TensorRecord
from trainwright.errors import CheckpointCorruptError, CheckpointVersionError

SHARD = ShardRecord(file="rank-00000.safetensors", start=8, bytes=24, digest="ab", offsets=(0, 0), lengths=(2, 3))
MANIFEST = Manifest(
    step=12,
    epoch=3,
    trial=7,
    lease=2,
    parent="cd",
    report={"metrics": {"loss": 0.5}},
    ties={"model.out": "model.in"},
    files=(FileRecord(name="rank-00000.safetensors", bytes=32, chunks=("00", "11"), ends=(8, 32)),),
    tensors=(TensorRecord(name="modèle/ß", dtype="float32", shape=(2, 3), shards=(SHARD,)),),
)
PATH = Path("step-000000000012/manifest.json")


def test_round_trip():
    content = MANIFEST.to_bytes()
    assert Manifest.from_bytes(content, PATH) == MANIFEST
    assert json.loads(content)["digest"] == MANIFEST.digest
    assert (MANIFEST.size, MANIFEST.tensors[0].size, MANIFEST.tensors[0].digest) == (32, 24, "ab")


def test_every_bit_counts():
    """Whichever single bit is flipped, the manifest is refused."""
    content = bytearray(MANIFEST.to_bytes())
    for place in range(len(content)):
        for bit in range(8):
            content[place] ^= 1 << bit
            with pytest.raises(CheckpointCorruptError):
                Manifest.from_bytes(bytes(content), PATH)
            content[place] ^= 1 << bit


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", MANIFEST.to_bytes()[:-1], MANIFEST.to_bytes() + b" "])
def test_torn_or_foreign(content):
    with pytest.raises(
        CheckpointCorruptError, match=r"manifest.json: the manifest is damaged: its digest does not fit"
    ):
        Manifest.from_bytes(content, PATH)


def test_a_newer_form():
    """A checkpoint of a later version is no damaged one, and says which version reads it."""
    body = MANIFEST.to_bytes()[:-45].replace(b'"schema":1', b'"schema":9,"unknown":0')
    content = b'%b,"digest":"%b"}' % (body, digest_bytes(body).encode())
    with pytest.raises(CheckpointVersionError, match="is of form 9; this version reads up to 1; upgrade trainwright"):
        Manifest.from_bytes(content, PATH)


def test_chunks_of_a_file(tmp_path):
    """Files are digested in chunks of 16 MiB or at given edges, and a digest of chunks is one of their digests."""
    path = tmp_path / "file"
    content = bytes(range(256)) * (CHUNK_BYTES // 256) + b"rest"
    path.write_bytes(content)
    whole = (digest_bytes(content[:CHUNK_BYTES]), digest_bytes(b"rest"))
    assert digest_file(path) == whole
    assert digest_file(path, (5, 300)) == (digest_bytes(content[:5]), digest_bytes(content[5:300]))
    assert combine_digests(whole[:1]) == whole[0]
    assert combine_digests(whole) == digest_bytes("".join(whole).encode())
    assert list(chunk_ranges(3, 3)) == []
    assert list(chunk_ranges(1, CHUNK_BYTES + 2)) == [(1, CHUNK_BYTES + 1), (CHUNK_BYTES + 1, CHUNK_BYTES + 2)]


def test_digests_cover_sixteen_mebibytes_each():
    """It is part of the format: the digests of a file that was written before are compared one by one."""
    mebibyte = 2**20
    edges = [*range(0, 40 * mebibyte, 16 * mebibyte), 40 * mebibyte]
    assert list(chunk_ranges(0, 40 * mebibyte)) == list(itertools.pairwise(edges))
    assert list(chunk_ranges(5, 5)) == []
