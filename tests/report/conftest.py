"""Studies written straight into a ledger's journal, with a clock of their own: as they would be after a real run."""

import heapq
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from trainwright.ledger import DirectoryLedger, MemoryLedger, Record, Writer, facts, fold
from trainwright.randomness import rng
from trainwright.report.overview import Overview
from trainwright.space import Choice, Constant, Float, Int, Space, equals

SPACE = Space(
    lr=Float(1e-4, 1.0, log=True),
    width=Int(16, 256, log=True),
    optimizer=Choice("sgd", "adamw"),
    momentum=Float(0.0, 0.99, when=equals("optimizer", "sgd")),
    dropout=Float(0.0, 0.6, step=0.1),
    batch=Choice(32, 64, 128, ordered=True),
    data=Constant("digits"),
)
RUNGS = (1, 3, 9)


@dataclass
class Scribe:
    """Appends facts to one journal at times of its choosing, all in one write at the end."""

    directory: Path
    at: float = 1_760_000_000.0
    writer: str = "node-1-0000000000000000"
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        DirectoryLedger(self.directory / "ledger", create=True).close()

    def say(self, *said: Record, at: float | None = None) -> None:
        for record in said:
            self.records.append(record.stamped(self.writer, len(self.records), self.at if at is None else at))

    def create(self, objectives=("min val_loss",), space: Space = SPACE, seed: int = 7) -> "Scribe":
        versions = {"trainwright": "0.1.0"}
        self.say(facts.joined(Writer(host="node-1", boot="b", pid=1, process_start="1"), session=1))
        self.say(facts.created(space=space.to_json(), objectives=list(objectives), seed=seed, versions=versions))
        return self

    def propose(self, number: int, params: dict | None = None, space: Space = SPACE) -> dict:
        if params is None:
            params = space.configuration(space.sample(rng(7, "test", number), 1)[0]).params
        self.say(facts.proposed(number, params=params, key=f"{number:032x}", origin={}, seen=0, seen_hash=""))
        return params

    def write(self) -> Path:
        path = self.directory / "ledger" / "journal" / f"{self.writer}.jsonl"
        path.write_bytes(b"".join(record.line() for record in self.records))
        return self.directory


def curve(params: dict, number: int, epochs: int) -> list[float]:
    """Return losses that depend on the parameters, above all on lr, and a little on chance."""
    off = (math.log10(params["lr"]) + 2.0) ** 2
    floor = 0.06 + 0.12 * off + 0.1 * abs(params["dropout"] - 0.2) + (0.05 if params["optimizer"] == "sgd" else 0.0)
    speed = 0.35 * params["width"] ** 0.15
    noise = rng(7, "noise", number).normal(0.0, 0.012, epochs)
    losses = floor + 2.2 * np.exp(-speed * np.arange(1, epochs + 1)) + noise
    return np.maximum(losses, 0.02).tolist()


def asha_study(
    directory: Path,
    trials: int = 60,
    *,
    epochs: int = 27,
    workers: int = 2,
    stopping: bool = True,
    incidents: bool = True,
) -> Scribe:
    """Write a study of asynchronous workers with ASHA-like stopping, failures, a lost lease and a break."""
    scribe = Scribe(directory).create()
    start = scribe.at
    free = [(start + 0.2 * slot, slot) for slot in range(workers)]
    seen: dict[int, list[float]] = {rung: [] for rung in RUNGS}
    for number in range(trials):
        at, slot = heapq.heappop(free)
        if incidents and number == trials // 2:
            free = [(time + 7000.0, other) for time, other in free]  # killed, and taken up again two hours later
            heapq.heapify(free)
            at += 7000.0
        scribe.at = at
        params = scribe.propose(number)
        lease = 1
        scribe.say(facts.started(number, lease, slot=str(slot), devices=["cpu"], resumed_epoch=0))
        if incidents and number == trials // 3:
            scribe.say(facts.lost(number, lease, why="its process is gone", blame=False), at=at + 1.0)
            lease, at = 2, at + 3.0
            scribe.say(facts.started(number, lease, slot=str(slot), devices=["cpu"], resumed_epoch=0), at=at)
        pace = 1.5 + 0.02 * params["width"]
        losses = curve(params, number, epochs)
        begun = at
        ended = "completed"
        for epoch, loss in enumerate(losses, start=1):
            at += pace
            if incidents and number % 23 == 11 and epoch == 2:
                trace = 'Traceback (most recent call last):\n  File "train.py", line 12, in train\nRuntimeError: lr < 0'
                scribe.say(
                    facts.failed(
                        number, lease, failure="exception", message="lr < 0 & no way", traceback=trace,
                        wall_seconds=at - begun,
                    ),
                    at=at,
                )  # fmt: skip
                ended = ""
                break
            metrics = {"val_loss": loss, "val_accuracy": math.exp(-loss)}
            scribe.say(
                facts.reported(number, lease, epoch=epoch, step=None, metrics=metrics, wall_seconds=at - begun), at=at
            )
            if stopping and epoch in seen:
                others = seen[epoch]
                others.append(loss)
                others.sort()
                threshold = others[max(1, len(others) // 3) - 1]
                verdict = "continue" if loss <= threshold else "stop"
                scribe.say(
                    facts.decided(number, epoch=epoch, rule="ASHA", verdict=verdict, value=loss, threshold=threshold),
                    at=at,
                )
                if verdict == "stop":
                    ended = "stopped"
                    break
        if ended:
            scribe.say(
                facts.finished(number, lease, reason=ended, values=metrics, wall_seconds=at - begun), at=at + 0.01
            )
        heapq.heappush(free, (at + 0.3, slot))
    return scribe


@pytest.fixture(scope="session")
def asha(tmp_path_factory) -> Path:
    """Return a study of 60 trials with ASHA-like stopping at the rungs 1, 3, 9 of 27 epochs."""
    return asha_study(tmp_path_factory.mktemp("runs") / "digits").write()


@pytest.fixture
def scribe(tmp_path) -> Scribe:
    """Return an empty study's journal, to be filled by the test."""
    return Scribe(tmp_path / "study")


@pytest.fixture(scope="session", name="asha_study")
def asha_study_fixture():
    """Return the maker of such studies."""
    return asha_study


@pytest.fixture(scope="session")
def of_values():
    """Return a maker of overviews of complete trials with given values."""

    def make(objectives: list[str], values: list[dict]) -> Overview:
        ledger = MemoryLedger()
        ledger.append([facts.created(space=SPACE.to_json(), objectives=objectives, seed=0, versions={})])
        for number, metrics in enumerate(values):
            ledger.append([facts.finished(number, 1, reason="completed", values=metrics, wall_seconds=1.0)])
        return Overview(fold(ledger.read()[0]))

    return make


@pytest.fixture
def two_hosts(tmp_path) -> Path:
    """Return a study of two writers on two hosts, each with a slot named 0."""
    for host in ("node-1", "node-2"):
        scribe = Scribe(tmp_path / "study", writer=f"{host}-0000")
        number = int(host[-1])
        scribe.say(facts.joined(Writer(host=host, boot="b", pid=1, process_start="1"), session=1))
        if number == 1:
            scribe.say(facts.created(space=SPACE.to_json(), objectives=["min val_loss"], seed=0, versions={}))
        scribe.propose(number)
        scribe.say(facts.started(number, 1, slot="0", devices=["cpu"], resumed_epoch=0))
        scribe.say(
            facts.finished(number, 1, reason="completed", values={"val_loss": 0.5}, wall_seconds=9.0), at=scribe.at + 9
        )
        scribe.write()
    return tmp_path / "study"
