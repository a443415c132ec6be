"""A deadline: how it is written, that one in the past is refused, and that a run by it ends with complete trials."""

import subprocess
import sys
import time as clock
from datetime import datetime, time, timedelta
from pathlib import Path

import pytest

import trainwright as tw
from trainwright.errors import InputError
from trainwright.schedule import PromotionRule
from trainwright.study.driver.budget import Budget, as_datetime


def train(trial: tw.Trial) -> None:
    for epoch in trial.epochs():
        clock.sleep(0.05)
        trial.report(loss=trial.params["x"] + 1 / epoch)


def test_texts() -> None:
    """An hour is one of today; ISO texts and datetimes are as they are, without a zone that of the host."""
    today = datetime.now().astimezone()
    for given in ("18:00", time(18), "18:00:00"):
        assert as_datetime(given).timestamp() == today.replace(hour=18, minute=0, second=0, microsecond=0).timestamp()
    assert as_datetime("9:05").hour == 9
    assert as_datetime("2031-02-03T04:05+00:00").timestamp() == as_datetime("2031-02-03T05:05+01:00").timestamp()
    assert as_datetime(datetime(2031, 2, 3, 4)).tzinfo is not None  # noqa: DTZ001 -- the host's zone is put in


@pytest.mark.parametrize("given", ["soon", "25:00", "18.00", ""])
def test_no_time(given: str) -> None:
    with pytest.raises(InputError, match=r"deadline: got .*; allowed: a time such as '18:00'"):
        Budget(deadline=given)


def test_in_the_past() -> None:
    late = datetime.now().astimezone() - timedelta(seconds=90)
    with pytest.raises(InputError, match=r"which was 9\d s ago; allowed: a later time, with its date"):
        Budget(deadline=late)
    with pytest.raises(InputError, match="allowed: a time such as"):
        Budget(deadline=1700000000.0)  # type: ignore[arg-type]


def test_the_earlier_end_counts() -> None:
    soon = datetime.now().astimezone() + timedelta(seconds=60)
    assert 50 < Budget(deadline=soon).clock_seconds <= 60
    assert Budget(deadline=soon, wall_seconds=5.0).clock_seconds == 5.0
    assert not Budget(deadline=soon).endless


def test_a_run_by_a_deadline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends in time, says when the final phase begins, and has complete trials; the next run has a forecast."""
    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory=tmp_path, searcher=tw.RandomSearcher())
    rule = tw.ASHA(max_epochs=9, kind="promotion")
    for _ in range(2):
        end = datetime.now().astimezone() + timedelta(seconds=4)
        study.run(train, deadline=end, scheduler=rule, engine=tw.Local(workers=0))
        assert datetime.now().astimezone() < end + timedelta(seconds=2)
    said = capsys.readouterr().err
    assert study.state.counts["complete"] >= 2
    assert "from now on the best train to their end, each on up to 1 device" in said
    assert "more trials are complete; best loss=" in said
    assert "forecast: " in said


@pytest.mark.parametrize("rule", [tw.ASHA(max_epochs=9), tw.PASHA(max_epochs=9)])
def test_a_run_that_has_all_its_trials_does_not_idle_until_its_deadline(rule: PromotionRule) -> None:
    """What rests at rungs goes on to its end at once; then, or where nothing rests, the run ends."""
    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", searcher=tw.RandomSearcher())
    began, end = clock.monotonic(), datetime.now().astimezone() + timedelta(seconds=60)
    study.run(train, trials=6, deadline=end, scheduler=rule, engine=tw.Local(workers=0), progress=False)
    assert clock.monotonic() - began < 30
    assert study.state.counts["complete"]
    assert not study.state.counts["paused"]


def test_command_line(tmp_path: Path) -> None:
    """A deadline in the past is one sentence and exit status 2, from the option and from a study file."""
    table = '[study]\ntrain = "time:sleep"\nobjectives = "min loss"\n{}\n[space.x]\nkind = "float"\nlow = 0\nhigh = 1\n'
    for line, options in (('deadline = "2020-01-01T00:00"', []), ("trials = 1", ["--deadline", "2020-01-01T00:00"])):
        (tmp_path / "study.toml").write_text(table.format(line))
        for command in ("run", "worker"):
            run = subprocess.run(
                [sys.executable, "-m", "trainwright", command, "study.toml", *options],
                cwd=tmp_path, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert run.returncode == 2
            assert "deadline: got 2020-01-01" in run.stderr
            assert "Traceback" not in run.stderr
