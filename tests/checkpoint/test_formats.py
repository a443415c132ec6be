"""The formats that ship with the package pass the conformance class; files of other programs are read too."""

import random
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch

from trainwright.checkpoint.tools.formats.format import FORMATS, equal_bits, format_named, format_of
from trainwright.checkpoint.tools.formats.safetensors import SafeTensors
from trainwright.checkpoint.tools.formats.torch_zip import TorchZip
from trainwright.errors import CheckpointError, CheckpointFormatError, CheckpointNotFoundError, MissingExtra
from trainwright.testing.checkpoint_format import FormatConformance, bits


class TestTorchZip(FormatConformance):
    many = 2000  # here and below: ten thousand are for the slow tests

    def make(self):
        return TorchZip()

    def hide_pickles(self, folder, payload):
        torch.save({"x": torch.ones(2)}, folder / "plain.pt")
        with zipfile.ZipFile(folder / "plain.pt") as source, zipfile.ZipFile(folder / "hidden.pt", "w") as target:
            for entry in source.namelist():
                target.writestr(entry, payload() if entry.endswith("data.pkl") else source.read(entry))
        (folder / "plain.pt").unlink()


class TestSafeTensors(FormatConformance):
    def make(self):
        return SafeTensors()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TestTorchZip, TestSafeTensors])
def test_ten_thousand_tensors(kind):
    checks = kind()
    checks.many = FormatConformance.many
    checks.test_many_small()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TestTorchZip, TestSafeTensors])
def test_more_than_two_gib(kind, tmp_path):
    size = (1 << 31) + (1 << 20)
    large = torch.arange(size // 8, dtype=torch.int64)
    checked, path = kind().make(), tmp_path / "large"
    checked.write(path, {"before": torch.ones(3), "large": large, "after": torch.zeros(3)})
    with checked.open(path) as stored:
        assert torch.equal(stored["after"], torch.zeros(3))
        assert torch.equal(stored["large"], large)


def test_names_of_formats(tmp_path):
    assert set(FORMATS) == {"torch", "safetensors"}
    with pytest.raises(
        CheckpointFormatError, match=r"got 'safetensor'; allowed: torch, .* \(did you mean 'safetensors'"
    ):
        format_named("safetensor")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(CheckpointFormatError, match="of no known format; allowed: torch, safetensors"):
        format_of(tmp_path / "text")
    with pytest.raises(CheckpointNotFoundError, match="not there"):
        format_of(tmp_path / "nothing")


STATE = {"w": bits("float32", (3, 2)), "b": bits("bfloat16", (4,))}


class TestFilesOfOthers:
    """What other programs write is read, and what we write is read by them."""

    def test_torch_nested(self, tmp_path):
        """A nested state has dotted names; plain values are metadata; what is neither is said."""
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "shape": torch.Size([2])}
        torch.save({**saved, "kind": torch.float32}, tmp_path / "one.pt")
        with TorchZip().open(tmp_path / "one.pt") as stored:
            assert {"model.weight", "optimizer.state.0.exp_avg", "optimizer.state.1.step"} <= set(stored)
            assert stored.metadata["epoch"] == "3"
            assert stored.metadata["optimizer.param_groups.0.lr"] == "0.001"
            assert stored.lost == ("kind",)
            assert equal_bits(stored["model.weight"], model.weight.data)

    def test_torch_clash(self, tmp_path):
        torch.save({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}, tmp_path / "one.pt")
        with pytest.raises(CheckpointFormatError, match="two tensors that have this dotted name"):
            TorchZip().read(tmp_path / "one.pt")

    def test_ours_in_torch(self, tmp_path):
        TorchZip().write(tmp_path / "one.pt", STATE)
        found = torch.load(tmp_path / "one.pt", weights_only=True)
        assert all(equal_bits(found[name], tensor) for name, tensor in STATE.items())

    def test_safetensors(self, tmp_path):
        safetensors.torch.save_file(STATE, tmp_path / "theirs", {"format": "pt"})
        found = SafeTensors().read(tmp_path / "theirs")
        assert all(equal_bits(found[name], tensor) for name, tensor in STATE.items())
        with SafeTensors().open(tmp_path / "theirs") as stored:
            assert stored.metadata == {"format": "pt"}
        SafeTensors().write(tmp_path / "ours", STATE)
        found = safetensors.torch.load_file(tmp_path / "ours")
        assert all(equal_bits(found[name], tensor) for name, tensor in STATE.items())


@pytest.mark.parametrize("kind", FORMATS.values(), ids=list(FORMATS))
def test_flipped_bits(tmp_path, kind):
    """A flipped bit is refused in one sentence, or read as other values: formats have no digests, manifests do."""
    chance = random.Random(0)
    state = {**golden_state(), "long": torch.arange(100)}
    files = [file.name for file in kind.write(tmp_path / "one", state)]
    for number in range(60):
        path = tmp_path / f"{number}"
        (shutil.copytree if (tmp_path / "one").is_dir() else shutil.copy)(tmp_path / "one", path)
        file = path / chance.choice(files) if path.is_dir() else path
        content = bytearray(file.read_bytes())
        ends = chance.choice(
            [range(min(400, len(content))), range(len(content) - 400, len(content)), range(len(content))]
        )
        content[chance.choice(ends)] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
        try:
            found = kind.read(path)
        except CheckpointError as refusal:
            found = str(refusal)
        if isinstance(found, str):
            assert "\n" not in found


GOLDEN = Path(__file__).parent / "golden"


def golden_state():
    """Return what the golden files hold: `write_golden` wrote them with torch 2.13."""
    weight = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 7
    return {
        "model.weight": weight,
        "model.tied": weight,
        "half": torch.tensor([1.5, -0.0, torch.inf], dtype=torch.bfloat16),
        "a/b": torch.tensor(-3, dtype=torch.int64),
        "empty": torch.empty(0, 2, dtype=torch.uint8),
        "mask": torch.tensor([True, False]),
    }


def write_golden():
    """Write the files into this folder; to be done for a version of torch that is not there yet."""
    for kind in FORMATS.values():
        kind.write(Path(f"golden{kind.suffix}"), golden_state(), {"note": "ä"})


@pytest.mark.parametrize("path", sorted(GOLDEN.iterdir()), ids=lambda path: path.name)
def test_golden_files(path):
    """Files that earlier versions wrote are read for ever."""
    kind = format_of(path)
    assert path.suffix == kind.suffix
    with kind.open(path) as stored:
        assert stored.metadata == {"note": "ä"}
        assert stored.infos["model.tied"].tied == "model.weight"
        assert {name for name, tensor in golden_state().items() if not equal_bits(stored[name], tensor)} == set()
        assert len(stored) == len(golden_state())


def test_missing_extra(tmp_path, monkeypatch):
    """Without its package a format says the pip line; a file of it is not held damaged for that."""
    SafeTensors().write(tmp_path / "one", STATE)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingExtra, match=r'needs safetensors: pip install "\.\[\w+\]"'):
        SafeTensors().read(tmp_path / "one")
