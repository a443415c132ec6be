"""The benchmark of searchers together with rules, end to end on a small table of curves."""

import json
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from benchmarks.fidelity import run
from benchmarks.fidelity.problems import find_curves


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    hp = generator.random((60, 2)) * [1.0, 9.0] + [1e-3, 1.0]
    curves = np.abs(hp[:, :1] - 0.3) + 1.0 / np.arange(1, 10)
    curves[7, 3:] = np.nan
    (tmp_path / "taskset").mkdir()
    np.savez(tmp_path / "taskset" / "small.npz", hp=hp, hp_names=["rate", "width"], valid_loss=curves)
    return tmp_path


def test_regret_is_zero_at_the_best_one_at_the_median_and_never_above(folder: Path):
    [problem] = find_curves(folder)
    assert problem.length == 9
    assert problem.regret(problem.best) == 0.0
    assert problem.regret(problem.median) == 1.0
    assert problem.regret(1e9) == problem.regret(np.inf) == 1.0
    assert np.isinf(problem.model._losses[7, 3:]).all()


def test_a_study_trains_each_row_of_a_table_once(folder: Path):
    """The nearest row that is left; another study begins with all of them."""
    [problem] = find_curves(folder)
    params = problem.space.decode(problem.model.rows[3:4])[0]
    curve_of = problem.start()
    curves = [curve_of(params) for _ in range(60)]
    assert np.array_equal(curves[0], problem.model._losses[3])
    assert len({curve.tobytes() for curve in curves}) == 60
    assert np.array_equal(problem.start()(params), curves[0])
    assert np.array_equal(curve_of(params), curves[0])  # no row is left


def test_a_folder_of_tables_is_a_family_and_others_are_left_out(folder: Path):
    (folder / "empty").mkdir()
    (folder / "taskset").rename(folder / "mine")
    assert [(problem.family, problem.name) for problem in find_curves(folder)] == [("mine", "small")]
    assert list(find_curves(folder, ["taskset"])) == []


def test_methods_meet_the_same_studies_and_a_second_run_takes_what_is_kept(folder: Path, tmp_path: Path):
    arguments = ["--data", str(folder), "--families", "taskset,lcbench", "--seeds", "1", "--workers", "2"]
    arguments += ["--methods", "random+asha,forest+asha,evil+asha"]
    with pytest.raises(SystemExit):
        run.main(arguments)
    arguments[-1] = "random+asha,default+asha,forest+asha:1,tpe+median"
    arguments[arguments.index("--seeds") + 1] = "2"
    arguments += ["--cells", str(tmp_path / "cells"), "--results", str(tmp_path / "result.json")]
    result = run.main(arguments)
    summary, detail = result["summary"], result["detail"]
    assert "lcbench" in summary["skipped"]
    assert set(summary["regret_at_5"]) == set(summary["regret_at_1"]) >= {"random+asha", "default+asha", "forest+asha"}
    assert summary["default_behind_random"] in {0.0, 1.0}
    regrets = detail["taskset random+asha"]["regret"]
    assert regrets == sorted(regrets, reverse=True)
    assert len(regrets) == len(run.MARKS)
    assert set(detail["taskset forest+asha"]["minus"]) == {"default+asha", "random+asha"}
    # Of fewer seeds it is compared on those alone.
    counts = {row[1]: row[2] for row in result["table"]["rows"]}
    assert (counts["default+asha"], counts["forest+asha"]) == ("2", "1")
    cells = dict(json.loads(line) for line in (tmp_path / "cells").read_text().splitlines())
    forest, default = (cells[f"taskset small {name}+asha 2 0"] for name in ("forest", "default"))
    found = detail["taskset forest+asha"]["minus"]["default+asha"]
    assert [difference for difference, _, _ in found] == pytest.approx(np.subtract(forest, default))
    kept = (tmp_path / "cells").read_bytes()
    assert run.main(arguments)["summary"] == summary
    assert (tmp_path / "cells").read_bytes() == kept
    assert json.loads((tmp_path / "result.json").read_text())["benchmark"] == "fidelity"


class Peer:
    """A peer that trains each trial for three epochs, pauses it, and goes on with it last of all."""

    def __init__(self, name: str) -> None:
        del name
        self.reports: list[tuple[int, int]] = []
        self.paused: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def open(self, columns, seed, **options) -> str:
        assert [(column.name, column.kind) for column in columns] == [("rate", "log_float"), ("width", "float")]
        assert options == {"length": 9}
        return ""

    def start(self) -> tuple[int, list[float]]:
        trial = self.paused.pop(0) if len(self.paused) > 4 else 1 + max((one for one, _ in self.reports), default=-1)
        return trial, [0.3, 5.0]

    def report(self, trial: int, epoch: int, loss: float) -> bool:
        self.reports.append((trial, epoch))
        if epoch % 3 == 0 and epoch < 9:
            self.paused.append(trial)
        return epoch % 3 != 0


def test_a_peers_paused_trial_goes_on_where_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch):
    peers: list[Peer] = []
    monkeypatch.setattr(run, "Peer", lambda name: peers.append(Peer(name)) or peers[-1])
    [problem] = find_curves(folder)
    cell = run.Cell(family="taskset", problem="small", method="mobster", workers=1, seed=0)
    reports = run._theirs(problem, cell)
    assert [at for at, _ in reports] == list(range(1, 46))
    epochs: dict[int, int] = {}
    for trial, epoch in peers[0].reports:
        epochs[trial] = epochs.get(trial, 0) + 1
        assert epoch == epochs[trial]
    assert max(epochs.values()) > 3


def test_the_workers_of_a_peer_that_has_ended_idle(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """As SMAC's does where it finds no new configuration; what it found counts to the end."""

    class Ended(Peer):
        def start(self) -> tuple[int, list[float]] | None:
            return Peer.start(self) if len(self.reports) < 20 else None

    monkeypatch.setattr(run, "Peer", Ended)
    [problem] = find_curves(folder)
    cell = run.Cell(family="taskset", problem="small", method="smac+hyperband", workers=1, seed=0)
    reports = run._theirs(problem, cell)
    assert [at for at, _ in reports] == list(range(1, 22))
    assert reports[-1][0] < run.MARKS[-1] * problem.length
