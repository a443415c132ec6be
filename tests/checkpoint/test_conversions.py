"""Checkpoints of every kind are inspected, verified, compared and converted, and bad ones told in a sentence."""

import errno
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from trainwright.checkpoint import Manager
from trainwright.checkpoint.tools.convert import convert
from trainwright.checkpoint.tools.diff import diff
from trainwright.checkpoint.tools.formats.format import FORMATS, TensorInfo, equal_bits, format_named
from trainwright.checkpoint.tools.formats.safetensors import SafeTensors
from trainwright.checkpoint.tools.formats.torch_zip import TorchZip
from trainwright.checkpoint.tools.inspect import verify
from trainwright.checkpoint.tools.sources import open_source
from trainwright.errors import (
    CheckpointConfigError,
    CheckpointCorruptError,
    CheckpointFormatError,
    CheckpointSpaceError,
)
from trainwright.testing.checkpoint_format import bits

STATE = {"w": bits("float32", (40, 30)), "h": bits("bfloat16", (7,)), "a/b": bits("int64", ()), "e": torch.empty(0, 2)}
STATE["tied"] = STATE["w"]
PAIRS = [(one, other) for one in FORMATS for other in FORMATS]


@pytest.fixture
def saved(tmp_path):
    """Return a manager's folder with steps 1 and 2 of a small training, and its model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    with Manager(tmp_path / "saved", model=model, optimizer=optimizer) as manager:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(3, 5)).square().sum().backward()
            optimizer.step()
            manager.step()
            manager.save(wait=True)
    return tmp_path / "saved", model


class TestConvert:
    @pytest.mark.parametrize(("first", "second"), PAIRS)
    def test_there_and_back(self, tmp_path, first, second):
        """From any format to any other and back, every bit, name, tie and text stays."""
        format_named(first).write(tmp_path / "source", STATE, {"note": "ä"})
        there = convert(tmp_path / "source", tmp_path / "there", second)
        convert(tmp_path / "there", tmp_path / "back", format_named(first))
        assert (there.tensors, there.format, there.lost) == (5, second, ())
        with open_source(tmp_path / "back") as back:
            assert all(equal_bits(back.stored[name], tensor) for name, tensor in STATE.items())
            assert back.stored.infos["tied"] == TensorInfo(dtype="float32", shape=(40, 30), tied="w")
            assert back.stored.metadata == {"note": "ä"}
        assert diff(tmp_path / "source", tmp_path / "there").same
        assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "source", "there"]

    def test_from_a_manager(self, saved, tmp_path):
        """The newest step of a folder becomes one file: weights, optimizer by parameter name, and plain values."""
        folder, model = saved
        convert(folder, tmp_path / "weights.safetensors", "safetensors")
        found = format_named("safetensors").read(tmp_path / "weights.safetensors")
        assert all(equal_bits(found[f"model.{name}"], value) for name, value in model.state_dict().items())
        assert "optimizer.state.model.0.weight.exp_avg" in found
        with format_named("safetensors").open(tmp_path / "weights.safetensors") as stored:
            metadata = dict(stored.metadata)
        assert metadata["step"] == "2"
        assert json.loads(metadata["counters"]) == {"step": 2}
        assert diff(folder, tmp_path / "weights.safetensors").same

    def test_lossy(self, tmp_path):
        """What the format has no word for is refused, or left out and told."""
        TorchZip().write(tmp_path / "one.pt", {"c": bits("complex128", (2,)), "w": torch.ones(2)})
        with pytest.raises(
            CheckpointFormatError, match=r"'safetensors' cannot hold 'c' \(complex128\); leave it out with"
        ):
            convert(tmp_path / "one.pt", tmp_path / "two", "safetensors")
        assert not (tmp_path / "two").exists()
        done = convert(tmp_path / "one.pt", tmp_path / "two", "safetensors", allow_lossy=True)
        assert (done.tensors, done.lost) == (1, ("c",))
        torch.save({"w": torch.ones(2), "kind": torch.float32}, tmp_path / "other.pt")
        with pytest.raises(CheckpointFormatError, match=r"'kind' \(no tensor\)"):
            convert(tmp_path / "other.pt", tmp_path / "three", "safetensors")

    def test_lossy_ties(self, tmp_path):
        """A tied tensor that cannot be held goes with its tie."""
        number = bits("complex128", (2,))
        TorchZip().write(tmp_path / "one.pt", {"c": number, "d": number, "w": torch.ones(2)})
        done = convert(tmp_path / "one.pt", tmp_path / "two", "safetensors", allow_lossy=True)
        assert done.lost == ("c", "d")

    def test_refusals(self, tmp_path):
        (tmp_path / "there").touch()
        TorchZip().write(tmp_path / "one.pt", STATE)
        with pytest.raises(CheckpointFormatError, match=r"there, which exists; allowed: a path where nothing is"):
            convert(tmp_path / "one.pt", tmp_path / "there", "safetensors")
        with pytest.raises(CheckpointFormatError, match="got 'zarr'; allowed: torch"):
            convert(tmp_path / "one.pt", tmp_path / "two", "zarr")
        with pytest.raises(CheckpointSpaceError, match="no such file or directory; give another path"):
            convert(tmp_path / "one.pt", tmp_path / "no" / "folder", "safetensors")

    @pytest.mark.parametrize("kind", FORMATS)
    def test_what_was_written_is_compared(self, tmp_path, kind, monkeypatch):
        """A writer that writes something else is caught, and nothing of it stays."""
        TorchZip().write(tmp_path / "one.pt", STATE)
        write = type(FORMATS[kind])._write

        def wrong(self, path, tensors, infos, metadata):
            return write(self, path, {name: tensors[name] * 0 for name in tensors}, infos, metadata)

        monkeypatch.setattr(type(FORMATS[kind]), "_write", wrong)
        with pytest.raises(
            CheckpointCorruptError, match=f"w in the {kind} file came out differently; nothing was kept"
        ):
            convert(tmp_path / "one.pt", tmp_path / "two", kind)
        assert [path.name for path in tmp_path.iterdir()] == ["one.pt"]

    def test_full_disk(self, tmp_path, monkeypatch):
        def full(*_, **__):
            raise OSError(errno.ENOSPC, "No space left on device")

        TorchZip().write(tmp_path / "one.pt", STATE)
        monkeypatch.setattr(SafeTensors, "_write", full)
        with pytest.raises(CheckpointSpaceError, match="two: no space left on device; free some"):
            convert(tmp_path / "one.pt", tmp_path / "two", "safetensors")
        assert [path.name for path in tmp_path.iterdir()] == ["one.pt"]


class TestInspect:
    def test_a_format_without_checksums(self, tmp_path):
        TorchZip().write(tmp_path / "one", STATE)
        with pytest.raises(CheckpointFormatError, match="a torch file, which keeps no checksums"):
            verify(tmp_path / "one")
        with pytest.raises(CheckpointFormatError, match="of no known format"):
            verify(Path(__file__))


class TestDiff:
    def test_everything(self, tmp_path):
        """Names, dtypes, shapes, values and text that differ are told; the first tensor is named."""
        base = {"same": torch.ones(3), "only": torch.ones(1), "kind": torch.ones(2), "w": torch.zeros(2, 3)}
        other = {"same": torch.ones(3), "new": torch.ones(1), "kind": torch.ones(2).int(), "w": torch.zeros(2, 3)}
        other["w"][1, 1], other["w"][1, 2] = 0.5, -2.0
        TorchZip().write(tmp_path / "a", base, {"x": "1", "y": "2"})
        SafeTensors().write(tmp_path / "b", other, {"x": "1", "y": "3"})
        found = diff(tmp_path / "a", tmp_path / "b")
        assert (found.only_a, found.only_b, found.metadata) == (("only",), ("new",), ("y",))
        assert [(one.name, one.a, one.b) for one in found.changed] == [("kind", "float32 (2,)", "int32 (2,)")]
        (w,) = found.different
        assert (w.name, w.values, w.different, w.max_abs, w.max_rel) == ("w", 6, 2, 2.0, 1.0)
        assert (found.first, found.same) == ("w", False)
        json.dumps(found.to_json())

    def test_tolerance(self, tmp_path):
        """Bit by bit, NaN payloads and zeros of either sign differ; with a tolerance they do not."""
        nan = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
        one = torch.stack([nan[0], torch.tensor(0.0), torch.tensor(1.0), torch.tensor(torch.inf)])
        two = torch.stack([nan[1], torch.tensor(-0.0), torch.tensor(1.001), torch.tensor(torch.inf)])
        TorchZip().write(tmp_path / "a", {"w": one})
        TorchZip().write(tmp_path / "b", {"w": two})
        assert [entry.different for entry in diff(tmp_path / "a", tmp_path / "b").different] == [3]
        assert diff(tmp_path / "a", tmp_path / "b", tolerance=0.01).same
        (left,) = diff(tmp_path / "a", tmp_path / "b", tolerance=1e-4).different
        assert left.different == 1
        TorchZip().write(tmp_path / "half", {"w": torch.stack([nan[0], *one[1:3], nan[0]])})
        TorchZip().write(tmp_path / "whole", {"w": torch.stack([torch.tensor(0.0), *one[1:]])})
        (apart,) = diff(tmp_path / "half", tmp_path / "whole", tolerance=1e-4).different
        assert apart.different == 2
        (apart,) = diff(tmp_path / "whole", tmp_path / "half", tolerance=1e-4).different
        assert apart.different == 2
        for wrong in (-1.0, float("nan")):
            with pytest.raises(CheckpointConfigError, match="tolerance: got"):
                diff(tmp_path / "a", tmp_path / "b", tolerance=wrong)

    @pytest.mark.parametrize("dtype", ["bool", "int64", "uint64", "bfloat16", "float8_e4m3fn", "complex64"])
    def test_dtypes(self, tmp_path, dtype):
        TorchZip().write(tmp_path / "a", {"w": torch.ones(3).to(getattr(torch, dtype))})
        TorchZip().write(tmp_path / "b", {"w": torch.tensor([1.0, 0.0, 1.0]).to(getattr(torch, dtype))})
        (found,) = diff(tmp_path / "a", tmp_path / "b").different
        assert (found.different, found.max_abs) == (1, 1.0)

    def test_two_steps(self, saved):
        """Two steps of a training differ in weights, in moments, and in their counters."""
        folder, _ = saved
        found = diff(folder / "step-000000000001", folder / "step-000000000002")
        assert found.first == "model.0.weight"
        assert {"step", "counters"} <= set(found.metadata)
        assert diff(folder, folder / "step-000000000002").same
