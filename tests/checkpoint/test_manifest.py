"""The manifest: it comes back as it was, and a change of any bit of it is seen."""

import json
from pathlib import Path

import pytest

from trainwright.checkpoint.digest import CHUNK_BYTES, combined, cuts, digest, digest_file
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
    content = MANIFEST.encoded()
    assert Manifest.decoded(content, PATH) == MANIFEST
    assert json.loads(content)["digest"] == MANIFEST.digest
    assert (MANIFEST.size, MANIFEST.tensors[0].size, MANIFEST.tensors[0].digest) == (32, 24, "ab")


def test_every_bit_counts():
    """Whichever single bit is flipped, the manifest is refused."""
    content = bytearray(MANIFEST.encoded())
    for place in range(len(content)):
        for bit in range(8):
            content[place] ^= 1 << bit
            with pytest.raises(CheckpointCorruptError):
                Manifest.decoded(bytes(content), PATH)
            content[place] ^= 1 << bit


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", MANIFEST.encoded()[:-1], MANIFEST.encoded() + b" "])
def test_torn_or_foreign(content):
    with pytest.raises(
        CheckpointCorruptError, match=r"manifest.json: the manifest is damaged: its digest does not fit"
    ):
        Manifest.decoded(content, PATH)


def test_a_newer_form():
    """A checkpoint of a later version is no damaged one, and says which version reads it."""
    body = MANIFEST.encoded()[:-45].replace(b'"schema":1', b'"schema":9,"unknown":0')
    content = b'%b,"digest":"%b"}' % (body, digest(body).encode())
    with pytest.raises(CheckpointVersionError, match="is of form 9; this version reads up to 1; upgrade trainwright"):
        Manifest.decoded(content, PATH)


def test_chunks_of_a_file(tmp_path):
    """Files are digested in chunks of 16 MiB or at given edges, and a digest of chunks is one of their digests."""
    path = tmp_path / "file"
    content = bytes(range(256)) * (CHUNK_BYTES // 256) + b"rest"
    path.write_bytes(content)
    whole = (digest(content[:CHUNK_BYTES]), digest(b"rest"))
    assert digest_file(path) == whole
    assert digest_file(path, (5, 300)) == (digest(content[:5]), digest(content[5:300]))
    assert combined(whole[:1]) == whole[0]
    assert combined(whole) == digest("".join(whole).encode())
    assert list(cuts(3, 3)) == []
    assert list(cuts(1, CHUNK_BYTES + 2)) == [(1, CHUNK_BYTES + 1), (CHUNK_BYTES + 1, CHUNK_BYTES + 2)]
