"""A study on disk without a study: trials that leave entries and record offers in a real ledger."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainwright.ensemble import Library, leave
from trainwright.ensemble.library.cost import MemberCost
from trainwright.ledger import DirectoryLedger, facts


@dataclass(kw_only=True)
class FakeTrial:
    """What `leave` needs of a trial."""

    directory: Path
    ledger: DirectoryLedger
    number: int = 0
    rank: int = 0
    lease: int = 1
    next_epoch: int = 1
    seed: int = 0
    params: dict[str, Any] = field(default_factory=lambda: {"lr": 0.1})
    scratch: dict[str, Any] = field(default_factory=dict)

    def library_directory(self) -> Path:
        return self.directory / "library" / f"trial-{self.number:06d}" / f"lease-{self.lease}"

    def offer(self, path: Path, digests: dict[str, str], *, epoch: int) -> None:
        relative = path.relative_to(self.directory).as_posix()
        self.ledger.append([facts.offered(self.number, self.lease, epoch=epoch, path=relative, digests=digests)])


class FakeStudy:
    """A folder with a ledger, a fixed set of rows, and trials whose predictions are as good as asked."""

    def __init__(self, directory: Path, rows: int = 60, classes: int = 4) -> None:
        self.directory = directory
        self.ledger = DirectoryLedger(directory / "ledger", create=True)
        self.classes = classes
        draws = np.random.default_rng(7)
        self.targets = {name: draws.integers(0, classes, rows) for name in ("selection", "test")}

    def trial(self, number: int = 0, **settings: Any) -> FakeTrial:
        return FakeTrial(directory=self.directory, ledger=self.ledger, number=number, **settings)

    def predictions(self, number: int, skill: float = 1.5) -> dict[str, np.ndarray]:
        """Return class probabilities that lean to the truth, with errors of their own for every number."""
        draws = np.random.default_rng(number)
        found = {}
        for name, labels in self.targets.items():
            logits = draws.normal(size=(len(labels), self.classes))
            logits[np.arange(len(labels)), labels] += skill
            odds = np.exp(logits)
            found[name] = odds / odds.sum(axis=1, keepdims=True)
        return found

    def leave(self, number: int, skill: float = 1.5, **settings: Any) -> Path:
        trial = self.trial(number, **settings)
        return leave(trial, predictions=self.predictions(number, skill), targets=self.targets)

    def library(self) -> Library:
        return Library.open(self.directory)


@pytest.fixture(autouse=True)
def no_flushes(monkeypatch):
    """Do not wait for the disk, which would be most of the time; tests of durability look at the calls."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)


@pytest.fixture
def study(tmp_path) -> FakeStudy:
    return FakeStudy(tmp_path / "study")


@pytest.fixture(scope="session")
def filled(tmp_path_factory) -> FakeStudy:
    """Return a study, not to be changed, with eight members that are better the more they cost."""
    study = FakeStudy(tmp_path_factory.mktemp("filled") / "study")
    for number in range(8):
        cost = MemberCost(
            parameter_count=number + 1,
            weight_bytes=4 * (number + 1),
            device="cpu",
            seconds=0.128 * (number + 1),
        )
        trial = study.trial(number, params={"width": number}, scratch={"ensemble.cost": cost})
        leave(trial, object(), predictions=study.predictions(number, skill=1 + number / 8), targets=study.targets)
    return study
