"""Every public writer meets a full disk: what it would replace is there still, and it says so in one sentence."""

import contextlib
import os
import resource
import signal

import pytest
import torch

import trainwright as tw
from trainwright.cli.workflow.stage import StageOutcome, StageRecords
from trainwright.cluster import Cluster
from trainwright.ledger import open_ledger

BIG = 200_000


def cluster(folder, size):
    return lambda: Cluster.preset("dgx-a100").save(folder / "cluster.toml")


def trials(folder, count):
    with tw.Study(tw.Space(x=tw.Float(0, 1)), objectives="min loss", directory=folder / "study", seed=0) as study:
        study.run(
            lambda trial: trial.params["x"],
            trials=count,
            searcher=tw.RandomSearcher(),
            engine=tw.Local(workers=0),
            progress=False,
        )
    return folder / "study"


def reports(writer):
    def made(folder, size):
        directory = trials(folder, 3 if size < BIG else 5)
        return lambda: writer(directory, folder)

    return made


def report(directory, folder):
    from trainwright.report.html import write_report

    write_report(directory, folder / "report.html")


def summary(directory, folder):
    from trainwright.report.exports import write_summary

    write_summary(directory, also={"x": "x" * BIG})


def csv(directory, folder):
    from trainwright.report.exports import export_csv

    export_csv(directory, folder / "table.csv")


def optuna_journal(directory, folder):
    from trainwright.integrations.optuna.journal import export_optuna_journal

    export_optuna_journal(directory, folder / "optuna.log")


def stages(folder, size):
    return lambda: StageRecords(folder).write("search", {}, StageOutcome(content={"x": "x" * size}))


def converted(folder, size):
    from trainwright.checkpoint.tools.convert import convert

    source = folder / "source.pt"
    torch.save({"x": torch.ones(size)}, source)
    return lambda: convert(source, folder / f"converted-{size}.safetensors", "safetensors")


def formats(folder, size):
    from trainwright.checkpoint.tools.formats.format import format_named

    return lambda: format_named("torch").write(folder / f"format-{size}.pt", {"x": torch.ones(size)})


def checkpoint(folder, size):
    manager = tw.checkpoint.Manager(
        folder / "checkpoints", config=tw.checkpoint.CheckpointConfig(on_error="raise"), x=torch.ones(size)
    )
    return lambda: (manager.save(wait=True), manager.history)


def member(folder, size):
    from trainwright.ensemble.library.member import write_folder

    return lambda: write_folder(folder / "library", "member", {"a": b"x" * size, "b/c": b"x"})


def text(folder, size):
    from trainwright.files import write_text

    return lambda: write_text(folder / "plan.json", "plan", "x" * size)


WRITERS = {
    "cluster": cluster,
    "text": text,
    "stages": stages,
    "convert": converted,
    "format": formats,
    "checkpoint": checkpoint,
    "member": member,
    "report": reports(report),
    "summary": reports(summary),
    "csv": reports(csv),
    "optuna journal": reports(optuna_journal),
}


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


@contextlib.contextmanager
def full_disk(limit):
    """No file of this process can grow beyond `limit` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_what_was_there(tmp_path, name):
    """And nothing half written beside it."""
    WRITERS[name](tmp_path, 100)()
    write = WRITERS[name](tmp_path, BIG)
    before = contents(tmp_path)
    with full_disk(60), pytest.raises((tw.TrainwrightError, OSError), match=r"too large") as raised:
        write()
    assert "\n" not in str(raised.value)
    after = contents(tmp_path)
    assert {path: data for path, data in after.items() if path in before} == before
    assert not [path for path in after.keys() - before.keys() if "claims" not in path]


def test_the_address_of_a_ledger(tmp_path):
    """The file is its owner's alone, whoever made what beforehand."""
    from trainwright.ledger.opening import _note

    folder = tmp_path / "ledger"
    folder.mkdir()
    (folder / f"url.{os.getpid()}").write_text("made by another")
    (folder / f"url.{os.getpid()}").chmod(0o666)
    _note(folder, "redis://:secret@host/0?study=x")
    assert (folder / "url").stat().st_mode & 0o777 == 0o600
    assert open_ledger is not None
