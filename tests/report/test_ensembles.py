"""The part of a report that a library gives: front, members alone, the pick, or the reason why there is none."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from trainwright.ensemble import EnsembleSettings, Library, leave
from trainwright.ensemble.ensemble_settings import StoredSettings
from trainwright.ensemble.library.cost import MemberCost
from trainwright.ledger import DirectoryLedger, facts, fold
from trainwright.report import write_report
from trainwright.report.exports import choose_study_ensemble
from trainwright.report.figures.ensembles import ensemble_front

ROWS, CLASSES = 200, 5
TARGETS = {name: np.random.default_rng(3).integers(0, CLASSES, ROWS) for name in ("selection", "test")}


@dataclass
class Leaver:
    """What `leave` needs of a trial."""

    directory: Path
    ledger: DirectoryLedger
    number: int
    rank: int = 0
    next_epoch: int = 1
    seed: int = 0
    params: dict = field(default_factory=dict)
    scratch: dict = field(default_factory=dict)

    def library_directory(self) -> Path:
        return self.directory / "library" / f"trial-{self.number:06d}" / "lease-1"

    def offer(self, path, digests, *, epoch) -> None:
        relative = path.relative_to(self.directory).as_posix()
        self.ledger.append([facts.offered(self.number, 1, epoch=epoch, path=relative, digests=digests)])


def library(directory, numbers, *, timed=True, rows=ROWS, epoch=1):
    """Leave members that are better the more they cost, each with errors of its own."""
    ledger = DirectoryLedger(directory / "ledger")
    for number in numbers:
        draws = np.random.default_rng(number)
        predictions = {}
        for name, labels in TARGETS.items():
            logits = draws.normal(size=(rows, CLASSES))
            logits[np.arange(rows), labels[:rows]] += 1.0 + number / 20
            predictions[name] = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        cost = MemberCost(
            parameter_count=10, weight_bytes=4000 + number, device="cpu",
            seconds=128e-6 * (1 + number),
        )  # fmt: skip
        trial = Leaver(directory, ledger, number, next_epoch=epoch, scratch={"ensemble.cost": cost} if timed else {})
        targets = {name: labels[:rows] for name, labels in TARGETS.items()}
        leave(trial, object() if timed else None, predictions=predictions, targets=targets)


@pytest.fixture
def study(scribe):
    scribe.create()
    for number in range(20):
        scribe.propose(number)
        scribe.say(facts.finished(number, 1, reason="completed", values={"val_loss": 1 / (1 + number)}, wall_seconds=1))
    return scribe.write()


def members_of(ensemble):
    return [member.trial for member in ensemble.members]


def state_of(directory):
    return fold(DirectoryLedger(directory / "ledger").read()[0])


def test_front_singles_and_pick(study):
    library(study, range(0, 20, 2))
    found = choose_study_ensemble(state_of(study), study)
    assert 0.5 < found.ensemble.score("test", "accuracy") <= 1.0
    figure = ensemble_front(found)
    traces = {trace["name"]: trace for trace in figure.data}
    assert traces["one model"]["customdata"] == [f"trial {number}" for number in range(0, 20, 2)]
    assert traces["one model"]["x"][0] == pytest.approx(1.0)  # microseconds per row
    line = traces["least loss for the cost"]["y"]
    assert line == sorted(line, reverse=True)
    assert traces["pick"]["y"][0] in traces["front"]["y"]
    assert figure.layout["xaxis"]["title"]["text"] == "µs per row"
    text = write_report(study).read_text(encoding="utf-8")
    assert "below the best single model&#x27;s" in text or "below the best single model's" in text
    assert "On the test rows, which no choice was made on: accuracy" in text


def test_without_times_the_members_are_counted(study):
    library(study, range(6), timed=False)
    assert ensemble_front(choose_study_ensemble(state_of(study), study)).layout["xaxis"]["title"]["text"] == "members"


def test_a_large_library_is_cut_to_its_best(study):
    library(study, range(12))
    StoredSettings(settings=EnsembleSettings(library_top=5)).write(study)
    figure = ensemble_front(choose_study_ensemble(state_of(study), study))
    singles = len(figure.data[0]["x"])
    assert 5 <= singles < 12  # the five best, and those that none beats in loss and cost
    assert f"{12 - singles} further models were left out" in figure.caption


def test_a_library_that_allows_no_choice_costs_only_its_section(study):
    library(study, [0, 1])
    library(study, [2], rows=ROWS - 1)
    text = write_report(study).read_text(encoding="utf-8")
    assert "split &#x27;selection&#x27;: got 2 different sets of rows" in text
    assert 'id="parallel"' in text


def test_no_library_no_section(study):
    assert choose_study_ensemble(state_of(study), study) is None
    assert 'id="ensembles"' not in write_report(study).read_text(encoding="utf-8")


def test_every_state_has_the_ensemble_of_its_settings(study):
    """Newcomers, later epochs of known trials, and entries that cannot be used."""
    assert choose_study_ensemble(state_of(study), study) is None
    for numbers, epoch in (([3, 1], 1), ([0, 7], 1), ([], 1), ([1, 5], 2)):
        library(study, numbers, epoch=epoch)
        found = choose_study_ensemble(state_of(study), study)
        chosen = EnsembleSettings().choose(Library.open(study))
        assert members_of(found.ensemble) == members_of(chosen.ensemble)
        assert found.ensemble.weights == chosen.ensemble.weights
        assert found.front.baselines["single best"].members == chosen.front.baselines["single best"].members
    assert found.models == 5
