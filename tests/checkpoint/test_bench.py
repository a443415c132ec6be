"""The bench of formats and writers: all ways on one state, refusals, and what it leaves behind."""

import errno
import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from trainwright.checkpoint.tools.bench import Bench, BenchRow, TimeSpan, bench
from trainwright.checkpoint.tools.bench_ranks import scale
from trainwright.checkpoint.tools.bench_targets import collect_state, fill_optimizers
from trainwright.checkpoint.tools.formats.registry import FORMATS
from trainwright.checkpoint.tools.formats.safetensors import SafeTensors
from trainwright.errors import (
    CheckpointConfigError,
    CheckpointError,
    CheckpointFormatError,
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


def row(name, blocking, slowdown=0.0, total=1.0, bitwise=True):
    spans = {"restore": TimeSpan(least=1, median=1), "verified": TimeSpan(least=1, median=1)}
    timed = {"blocking": TimeSpan(least=blocking, median=blocking), "total": TimeSpan(least=total, median=total)}
    timed["slowdown"] = TimeSpan(least=0, median=slowdown)
    return BenchRow(name=name, **timed, **spans, bytes=1, files=1, bitwise=bitwise)


class TestBench:
    def test_every_way(self, state, tmp_path):
        """All formats and writers in one go; the optimizer has state by then; nothing is left on the disk."""
        said = []
        found = bench(state, directory=tmp_path, repeats=2, step_seconds=0.01, progress=said.append)
        assert [one.name for one in found.rows] == [*FORMATS, "Manager sync", "Manager thread", "Manager process"]
        assert all(one.bitwise for one in found.rows)
        assert all(
            0 < span.least <= span.median for one in found.rows for span in (one.blocking, one.total, one.verified)
        )
        assert all(one.bytes > found.raw_bytes and one.files > 0 for one in found.rows)
        assert state["optimizer"].state
        assert found.skipped == {}
        assert list(tmp_path.iterdir()) == []
        assert said[0] == "torch: warming up"
        assert said[-1] == "Manager process: 2 of 2"
        assert found.recommendation.startswith('CheckpointConfig(writer="')

    def test_the_state_is_as_before(self, state, tmp_path):
        """Weights, moments and values are what they were, whatever was read into them meanwhile."""
        fill_optimizers(state)
        before = {name: value.clone() for name, value in state["model"].state_dict().items()}
        bench(state, directory=tmp_path, formats=["dcp"], writers=["thread"], repeats=1, step_seconds=0)
        after = state["model"].state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
        assert state["model"][2].weight is state["model"][0].weight

    def test_torch_is_always_there(self, state, tmp_path):
        found = bench(state, directory=tmp_path, formats=["safetensors"], writers=[], repeats=1)
        assert [one.name for one in found.rows] == ["torch", "safetensors"]
        assert found.recommendation.startswith("save with ")

    def test_a_format_that_loses_a_bit_is_told(self, state, tmp_path, monkeypatch):
        """What comes back is compared: a reader that alters one value cannot pass."""

        class Lossy(SafeTensors):
            @contextmanager
            def open(self, path):
                with super().open(path) as stored:
                    yield replace(stored, fetch=lambda name, cut: stored.fetch(name, cut) + 1)

        monkeypatch.setattr(
            sys.modules["trainwright.checkpoint.tools.bench"],
            "format_named",
            lambda name: Lossy() if name == "safetensors" else FORMATS[name],
        )
        found = bench(state, directory=tmp_path, formats=["safetensors"], writers=[], repeats=1)
        assert [one.bitwise for one in found.rows] == [True, False]

    def test_what_cannot_be_is_left_out_with_its_reason(self, state, tmp_path, monkeypatch):
        """A missing extra, a dtype that a format cannot hold: the other ways are measured all the same."""

        def missing(*_):
            raise MissingExtra.of("safetensors", "safetensors", "torch")

        monkeypatch.setattr(type(FORMATS["safetensors"]), "_write", missing)
        found = bench(state, directory=tmp_path, formats=["safetensors", "dcp"], writers=[], repeats=1)
        assert [one.name for one in found.rows] == ["torch", "dcp"]
        assert found.skipped == {"safetensors": 'safetensors needs safetensors: pip install ".[torch]"'}

    def test_no_room(self, state, tmp_path, monkeypatch):
        """Told before anything is written, or when it turns out."""
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1))
        with pytest.raises(CheckpointSpaceError, match=r"has 0 MB free, this state needs \d+ MB; give another folder"):
            bench(state, directory=tmp_path)
        monkeypatch.undo()

        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(type(FORMATS["torch"]), "_write", full)
        with pytest.raises(CheckpointSpaceError, match=r"bench, torch: .* cannot be written: no space left on device"):
            bench(state, directory=tmp_path)

    @pytest.mark.parametrize(
        ("settings", "kind", "sentence"),
        [
            ({"repeats": 0}, CheckpointConfigError, "repeats: got 0; allowed: a whole number >= 1"),
            ({"step_seconds": -1}, CheckpointConfigError, "step_seconds: got -1; allowed: a number from 0"),
            ({"writers": ["tread"]}, CheckpointConfigError, "writer: got 'tread'; allowed: sync, thread, process"),
            ({"formats": ["hdf"]}, CheckpointFormatError, "got 'hdf'; allowed: torch, safetensors"),
        ],
    )
    def test_refusals(self, state, settings, kind, sentence):
        with pytest.raises(kind, match=sentence):
            bench(state, **settings)

    def test_a_folder_that_is_not_there(self, state, tmp_path):
        with pytest.raises(CheckpointSpaceError, match="no such file or directory; allowed: a folder that is there"):
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
        """A way that lost a bit is never advised, nor one that blocks less but slows down more."""
        rows = (
            row("torch", 2.0),
            row("Manager sync", 3.0),
            row("Manager thread", 0.1, slowdown=0.4),
            row("Manager process", 0.1, bitwise=False),
        )
        found = Bench(rows=rows, raw_bytes=1, tensors=1, repeats=1, step_seconds=0, cached=False)
        assert found.recommendation == (
            'CheckpointConfig(writer="thread") costs training 0.5 s a save, torch.save 2 s; a run that is lost once a '
            "day should save every 294 s"
        )

    def test_a_disk_too_slow_for_the_best_interval(self):
        """No save is advised before the one before is on disk."""
        rows = (row("torch", 2.0), row("Manager thread", 0.1, total=1000.0))
        found = Bench(rows=rows, raw_bytes=1, tensors=1, repeats=1, step_seconds=0, cached=False)
        assert found.recommendation.endswith("should save every 1000 s")

    def test_nothing_is_right(self):
        lossy = row("torch", 2.0, bitwise=False)
        found = Bench(rows=(lossy,), raw_bytes=1, tensors=1, repeats=1, step_seconds=0, cached=False)
        assert found.recommendation == "nothing came back whole"


class TestScale:
    @pytest.fixture
    def factory(self, tmp_path, monkeypatch):
        """Return a factory by name, in a module of its own."""
        lines = [
            "import torch",
            "def build():",
            "    model = torch.nn.Linear(64, 64)",
            "    return model, torch.optim.Adam(model.parameters())",
            "def fail():",
            "    raise ValueError('no data')",
        ]
        (tmp_path / "scaled_factory.py").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(tmp_path)
        return "scaled_factory"

    @pytest.mark.slow
    def test_one_and_two_ranks(self, factory, tmp_path):
        """Each rank writes its part: together they write the state once, in more files."""
        found = scale(f"{factory}:build", [1, 2], directory=tmp_path, repeats=1)
        assert [(row.ranks, row.name) for row in found] == [(n, w) for n in (1, 2) for w in ("Manager", "torch DCP")]
        assert found[2].files == found[0].files + 1
        assert 4 * 3 * 64 * 65 < found[2].bytes < 1.5 * found[0].bytes
        assert all(row.total.median > 0 < row.restore.median for row in found)

    @pytest.mark.slow
    def test_a_rank_that_fails(self, factory):
        with pytest.raises(CheckpointError, match=r"bench, 1 ranks: rank 0 failed: .*ValueError: no data"):
            scale(f"{factory}:fail", [1])

    def test_refusals(self):
        with pytest.raises(CheckpointConfigError, match=r"scale: got ranks \[0\] and repeats 3; allowed: numbers >= 1"):
            scale("a:b", [0])
