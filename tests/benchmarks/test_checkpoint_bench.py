"""The bench of formats and writers: all ways on one state, refusals, and what it leaves behind."""

import errno
import os
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from benchmarks.checkpoint._bench import Bench, BenchRow, bench, collect_state
from torch import nn

from trainwright.checkpoint.tools.formats.format import FORMATS
from trainwright.checkpoint.tools.formats.safetensors import SafeTensors
from trainwright.errors import (
    CheckpointConfigError,
    CheckpointSpaceError,
    CheckpointStateError,
    MissingExtra,
)


@pytest.fixture
def state():
    """Return a small model with buffers and tied weights, its optimizer without a step, and a value."""
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "note": 3}


def row(name, blocking, total=1.0, bitwise=True):
    return BenchRow(name=name, blocking=blocking, total=total, restore=1.0, bytes=1, files=1, bitwise=bitwise)


class TestBench:
    def test_every_way(self, state, tmp_path):
        """All formats and writers in one go; the optimizer has state by then; nothing is left on the disk."""
        found = bench(state, directory=tmp_path, repeats=2)
        assert [one.name for one in found.rows] == [*FORMATS, "Manager sync", "Manager thread"]
        assert all(one.bitwise for one in found.rows)
        assert all(seconds > 0 for one in found.rows for seconds in (one.blocking, one.total, one.restore))
        assert all(one.bytes > found.raw_bytes and one.files > 0 for one in found.rows)
        assert state["optimizer"].state
        assert found.skipped == {}
        assert list(tmp_path.iterdir()) == []
        assert found.recommendation.startswith('CheckpointConfig(writer="')

    def test_the_state_is_as_before(self, state, tmp_path):
        """Weights, moments and values are what they were, whatever was read into them meanwhile."""
        state["model"](torch.randn(4, 8)).sum().backward()
        state["optimizer"].step()
        before = {name: value.clone() for name, value in state["model"].state_dict().items()}
        bench(state, directory=tmp_path, repeats=1)
        after = state["model"].state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
        assert state["model"][2].weight is state["model"][0].weight

    def test_a_format_that_loses_a_bit_is_told(self, state, tmp_path, monkeypatch):
        """What comes back is compared: a reader that alters one value cannot pass."""

        class Lossy(SafeTensors):
            @contextmanager
            def open(self, path):
                with super().open(path) as stored:
                    yield replace(stored, fetch=lambda name: stored.fetch(name) + 1)

        monkeypatch.setattr("benchmarks.checkpoint._bench.FORMATS", {**FORMATS, "safetensors": Lossy()})
        found = bench(state, directory=tmp_path, repeats=1)
        assert {one.name: one.bitwise for one in found.rows if not one.bitwise} == {"safetensors": False}

    def test_what_cannot_be_is_left_out_with_its_reason(self, state, tmp_path, monkeypatch):
        """A missing extra, a dtype that a format cannot hold: the other ways are measured all the same."""

        def missing(*_):
            raise MissingExtra.of("safetensors", "safetensors", "torch")

        monkeypatch.setattr(type(FORMATS["safetensors"]), "_write", missing)
        found = bench(state, directory=tmp_path, repeats=1)
        assert [one.name for one in found.rows] == ["torch", "Manager sync", "Manager thread"]
        assert found.skipped == {"safetensors": 'safetensors needs safetensors: pip install ".[torch]"'}

    def test_no_room(self, state, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(type(FORMATS["torch"]), "_write", full)
        with pytest.raises(CheckpointSpaceError, match=r"bench, directory: .*: no space left on device"):
            bench(state, directory=tmp_path)

    def test_refusals(self, state):
        with pytest.raises(CheckpointConfigError, match="repeats: got 0; allowed: a whole number >= 1"):
            bench(state, repeats=0)

    def test_a_folder_that_is_not_there(self, state, tmp_path):
        with pytest.raises(CheckpointSpaceError, match="cannot be written: no such file or directory"):
            bench(state, directory=tmp_path / "none")

    def test_state_that_cannot_be_kept(self, tmp_path):
        with pytest.raises(CheckpointStateError, match="a checkpoint cannot keep function"):
            bench({"model": lambda: None}, directory=tmp_path)


class TestStateOf:
    def test_what_factories_return(self):
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        assert collect_state(model) == {"model": model}
        assert collect_state((model, optimizer)) == {"model": model, "optimizer": optimizer}
        assert collect_state({"a": model, "b": 1}) == {"a": model, "b": 1}

    @pytest.mark.parametrize("made", [None, 3, {}, {1: 2}, ()])
    def test_refusals(self, made):
        with pytest.raises(
            CheckpointStateError, match=r"factory: got \w+; allowed: a torch.nn.Module, a tuple \(model"
        ):
            collect_state(made)


class TestRecommendation:
    def test_the_cheapest_of_those_that_are_right(self):
        """A way that lost a bit is never advised."""
        rows = (row("torch", 2.0), row("Manager sync", 0.1, bitwise=False), row("Manager thread", 0.5))
        found = Bench(rows=rows, raw_bytes=1, tensors=1, repeats=1)
        assert found.recommendation == (
            'CheckpointConfig(writer="thread") stops training for 0.5 s a save; a run that is lost once a day should '
            "save every 294 s"
        )

    def test_a_disk_too_slow_for_the_best_interval(self):
        """No save is advised before the one before is on disk."""
        found = Bench(rows=(row("Manager thread", 0.1, total=1000.0),), raw_bytes=1, tensors=1, repeats=1)
        assert found.recommendation.endswith("should save every 1000 s")

    def test_nothing_is_right(self):
        found = Bench(rows=(row("torch", 2.0, bitwise=False),), raw_bytes=1, tensors=1, repeats=1)
        assert found.recommendation == "nothing came back whole"
