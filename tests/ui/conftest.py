"""A small study that is written as it goes on, and the page over it."""

import time
from pathlib import Path

import pytest

from trainwright.ledger import DirectoryLedger, Record, Writer, facts
from trainwright.randomness import rng
from trainwright.space import Choice, Float, Space
from trainwright.ui.study_follower import StudyRegistry

SPACE = Space(lr=Float(1e-4, 1.0, log=True), optimizer=Choice("sgd", "adamw"))


class Scribe:
    """Writes a study in a directory as a driver does."""

    SPACE = SPACE

    def __init__(self, directory: Path, objectives=("min val_loss",)) -> None:
        self.directory = directory
        self.ledger = DirectoryLedger(directory / "ledger", create=True, fsync="never")
        versions = {"trainwright": "0.1.0"}
        created = facts.created(space=SPACE.to_json(), objectives=list(objectives), seed=3, versions=versions)
        self.say(created, facts.joined(Writer.here(), session=1))
        self.ledger.heartbeat()

    def say(self, *records: Record) -> None:
        self.ledger.append(records)

    def start(self, number: int, **params) -> dict:
        made = SPACE.configuration(SPACE.sample(rng(3, "test", number), 1)[0])
        chosen = {**made.params, **params}
        self.say(
            facts.proposed(number, params=chosen, key=f"{number:032x}", origin={}, seen=0, seen_hash=""),
            facts.started(number, 1, slot="0", devices=["cuda:0"], resumed_epoch=0),
        )
        return chosen

    def report(self, number: int, epoch: int, loss: float, lease: int = 1) -> None:
        metrics = {"val_loss": loss, "val_accuracy": 1 - loss}
        self.say(facts.reported(number, lease, epoch=epoch, step=None, metrics=metrics, wall_seconds=0.5 * epoch))

    def finish(self, number: int, loss: float, lease: int = 1) -> None:
        values = {"val_loss": loss, "val_accuracy": 1 - loss}
        self.say(facts.finished(number, lease, reason="completed", values=values, wall_seconds=2.0))

    def trial(self, number: int, epochs: int = 4, **params) -> None:
        self.start(number, **params)
        for epoch in range(1, epochs + 1):
            self.report(number, epoch, 1.0 / epoch + number / 100)
        self.finish(number, 1.0 / epochs + number / 100)


@pytest.fixture
def scribe(tmp_path):
    return Scribe(tmp_path / "digits")


@pytest.fixture
def small(scribe):
    """Twelve finished trials, one of them resized, one failed, one that runs; a log; a verdict."""
    for number in range(12):
        scribe.trial(number)
    scribe.start(12)
    for epoch in (1, 2):
        scribe.report(12, epoch, 0.9)
    scribe.say(facts.decided(12, epoch=1, rule="ASHA", verdict="continue", value=0.9, threshold=1.2))
    scribe.say(facts.paused(12, 1, reason="resized", epoch=2, values={}, wall_seconds=1.0))
    scribe.say(facts.started(12, 2, slot="0", devices=["cuda:0", "cuda:1"], resumed_epoch=2))
    scribe.report(12, 3, 0.8, lease=2)
    scribe.start(13)
    trace = "Traceback\n<script>alert(1)</script>"
    scribe.say(facts.failed(13, 1, failure="exception", message="<b>no</b> & way", traceback=trace, wall_seconds=1.0))
    log = scribe.directory / "logs" / "trial-000012" / "lease-2.log"
    log.parent.mkdir(parents=True)
    log.write_text("epoch 1\nepoch 2 <i>done</i>\n")
    return scribe


@pytest.fixture
def registry(small, tmp_path):
    with_studies = StudyRegistry(tmp_path)
    yield with_studies
    with_studies.close()


def until(condition, seconds: float = 20.0):
    """Return what `condition` returns once it is true; a study is followed by a thread."""
    ended = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < ended, "it did not happen"
        time.sleep(0.02)
    return found


@pytest.fixture(name="until")
def _until():
    return until


@pytest.fixture(name="Scribe")
def _scribe():
    return Scribe
