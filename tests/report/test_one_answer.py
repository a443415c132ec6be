"""One library and one set of settings, one ensemble: by run, command, report, live page, summary and Python."""

import contextlib
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pytest

from trainwright.cli import main
from trainwright.cli.workflow.ensemble import EnsembleStage
from trainwright.cli.workflow.stage import StudyJob
from trainwright.ensemble import EnsembleSettings, Library, leave
from trainwright.ensemble.ensemble_settings import SETTINGS_FILE, StoredSettings
from trainwright.ensemble.library.cost import MemberCost
from trainwright.ledger import DirectoryLedger, facts, fold
from trainwright.report.exports import choose_study_ensemble
from trainwright.report.html import write_report
from trainwright.report.overview import Overview
from trainwright.ui.figure_views import FigureViews

CASES = [case if case < 2 else pytest.param(case, marks=pytest.mark.slow) for case in range(20)]
SPLITS = {"selection": 60, "calibration": 40, "test": 30}


@dataclass
class Leaver:
    """What `leave` needs of a trial."""

    directory: Path
    ledger: DirectoryLedger
    number: int
    rank: int = 0
    lease: int = 1
    next_epoch: int = 1
    seed: int = 0
    params: dict = field(default_factory=dict)
    scratch: dict = field(default_factory=dict)

    def library_directory(self) -> Path:
        return self.directory / "library" / f"trial-{self.number:06d}" / "lease-1"

    def offer(self, path, digests, *, epoch) -> None:
        relative = path.relative_to(self.directory).as_posix()
        self.ledger.append([facts.offered(self.number, 1, epoch=epoch, path=relative, digests=digests)])


@dataclass
class Looking:
    """What the page's figures need of a follower."""

    directory: Path
    state: object
    study_id: str = "s"

    @contextlib.contextmanager
    def reading(self):
        yield Overview(self.state)


def settings_of(draws, kind):
    """Return settings that a library of six to nine models can keep, some as they come."""
    rules = {"classes": (None, "mean", "stacking"), "values": (None, "mean"), "moments": (None, "mixture")}
    metrics = {"classes": (None, "accuracy", "cross_entropy"), "values": (None,), "moments": (None, "squared_error")}
    drawn = {
        "max_members": int(draws.integers(1, 6)),
        "library_top": int(draws.integers(3, 10)),
        "budget_bytes": float(draws.integers(20, 60)),
        "budget_seconds": float(draws.uniform(1e-5, 4e-5)),
        "cost_factor": float(draws.uniform(1.0, 4.0)),
        "rule": rules[kind][draws.integers(len(rules[kind]))],
        "metric": metrics[kind][draws.integers(len(metrics[kind]))],
        "pick": ("best", "fallback")[draws.integers(2)],
    }
    return {name: value for name, value in drawn.items() if value is not None and draws.random() < 0.5}


def fill(directory, draws, kind):
    """Leave six to nine models of classes, values, or means and variances, the better ones dearer."""
    splits = {name: rows for name, rows in SPLITS.items() if name != "calibration" or draws.random() < 0.7}
    classes = int(draws.integers(2, 5))
    targets = {
        n: draws.integers(0, classes, r) if kind == "classes" else draws.normal(size=r) for n, r in splits.items()
    }
    ledger = DirectoryLedger(directory / "ledger")
    for number in range(int(draws.integers(6, 10))):
        told = {}
        for name, truth in targets.items():
            if kind == "classes":
                logits = 3 * draws.normal(size=(len(truth), classes))
                logits[np.arange(len(truth)), truth] += 1 + number / 4
                told[name] = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            else:
                mean = truth + draws.normal(size=len(truth)) / (1 + number / 4)
                told[name] = mean if kind == "values" else np.stack([mean, np.full(len(truth), 0.1)], axis=-1)
        cost = MemberCost(
            parameter_count=1, weight_bytes=4 * (number + 1), device="cpu",
            seconds=128e-6 * (1 + number),
        )  # fmt: skip
        trial = Leaver(directory, ledger, number, scratch={"ensemble.cost": cost})
        leave(trial, object(), predictions=told, targets=targets)


@pytest.fixture
def said(monkeypatch, capsys):
    """Return a function that runs a command here: the last line of JSON that it says."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["trainwright", *map(str, arguments), "--json"])
        with pytest.raises(SystemExit) as end:
            main()
        out = capsys.readouterr()
        assert not end.value.code, out.err
        return json.loads(out.out.splitlines()[-1])

    return run


def serialise_weights(rows):
    return {row["trial"]: row["weight"] for row in rows}


def on_the_page(folder, state):
    """Return the members that the live page shows, when it has drawn them."""
    drawings = FigureViews(Looking(folder, state))
    while (view := drawings.view("ensembles"))["pending"]:
        time.sleep(0.01)
    return serialise_weights(view["members"])


def doors(folder, said):
    """Return what each door that is given no settings says: the weights by trial."""
    state = fold(DirectoryLedger(folder / "ledger").read()[0])
    page = write_report(folder).read_text(encoding="utf-8")
    found = {
        "command": serialise_weights(said("ensemble", folder)["pick"]["members"]),
        "report": serialise_weights(choose_study_ensemble(state, folder).ensemble.table()),
        "live page": on_the_page(folder, state),
    }
    count = len(found["report"])
    assert f"The pick: {count} member{'s' if count > 1 else ''}." in page
    return found


@pytest.mark.parametrize("case", CASES)
def test_after_a_run(case, scribe, said):
    """The settings of [ensemble], whatever they are, are those of every door from then on."""
    draws = np.random.default_rng(case)
    kind = ("classes", "classes", "values", "moments")[case % 4]
    scribe.create()
    folder = scribe.write()
    fill(folder, draws, kind)
    table = settings_of(draws, kind)
    stage = EnsembleStage.from_table(table, "[ensemble]")
    outcome = stage.run(StudyJob(file=Path("study.toml"), open_study=None, train=None, directory=folder))
    summary = outcome.content["summary"]
    expected = dict(zip(summary["ensemble_trials"], summary["ensemble_weights"], strict=True))
    chosen = EnsembleSettings(**table).choose(Library.open(folder))
    assert {m.trial: w for m, w in zip(chosen.ensemble.members, chosen.ensemble.weights, strict=True)} == expected
    pictures = (folder / "ensemble.html").read_bytes()
    for door, found in doors(folder, said).items():
        assert found == expected, door
    assert summary["cost_limit"] == chosen.cost_limit
    assert (folder / "ensemble.html").read_bytes() == pictures
    assert StoredSettings.read(folder) == StoredSettings(settings=EnsembleSettings(**table), by_run=True)


def test_without_a_run_the_command_is_the_choice(scribe, said, tmp_path):
    """What it chose with is kept; only to look (with --html), or after a run, it changes nothing."""
    scribe.create()
    folder = scribe.write()
    fill(folder, np.random.default_rng(5), "classes")
    first = serialise_weights(said("ensemble", folder, "--max-members", 2, "--pick", "fallback")["pick"]["members"])
    assert asdict(StoredSettings.settings_of(folder)) == asdict(EnsembleSettings(max_members=2, pick="fallback"))
    for door, found in doors(folder, said).items():
        assert found == first, door
    before = (folder / SETTINGS_FILE).read_bytes()
    told = said("ensemble", folder, "--max-members", 1, "--html", tmp_path / "look.html")
    assert (len(told["pick"]["members"]), (folder / SETTINGS_FILE).read_bytes()) == (1, before)
    stage = EnsembleStage.from_table({"max_members": 3}, "[ensemble]")
    stage.run(StudyJob(file=Path("study.toml"), open_study=None, train=None, directory=folder))
    before, pictures = ((folder / name).read_bytes() for name in (SETTINGS_FILE, "ensemble.html"))
    told = said("ensemble", folder, "--max-members", 1)
    assert told["page"] == str(folder / "ensemble-tried.html")
    assert [(folder / name).read_bytes() for name in (SETTINGS_FILE, "ensemble.html")] == [before, pictures]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"settings": 7}', '{"settings": {"pick": "knee"}}', '{"settings": {"x": 1}}']
)
def test_settings_that_are_none(text, scribe):
    """One sentence in the report; no traceback."""
    scribe.create()
    folder = scribe.write()
    fill(folder, np.random.default_rng(5), "classes")
    (folder / SETTINGS_FILE).write_text(text)
    assert SETTINGS_FILE in write_report(folder).read_text(encoding="utf-8")
