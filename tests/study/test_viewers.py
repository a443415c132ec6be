"""What all viewers say of trials that are recorded as running: the same word, whatever became of their worker."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from itertools import product

import pytest
from scripts import wait_until

from trainwright.cli import main
from trainwright.ledger import DirectoryLedger, MemoryLedger, State, Writer, facts, fold
from trainwright.ledger.writers import under_way
from trainwright.report import write_report

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SLOW = """\
import time
import trainwright as tw

def train(trial):
    for epoch in trial.epochs():
        trial.report(loss=1 / epoch)
        time.sleep(600 if epoch == 2 else 0)

if __name__ == "__main__":
    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory="study")
    study.run(train, trials=4, scheduler=tw.FixedEpochs(400), engine=tw.Local(workers=0), progress=False)
"""


def status(folder, *options):
    """Return what the command prints, called in this process."""
    printed = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(sys, "argv", ["trainwright", "status", str(folder / "study"), *options])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code
    return printed.getvalue()


def shown(folder):
    """Return the word that each viewer has for trial 0."""
    pytest.importorskip("fastapi")
    from trainwright.ui.study_details import Query, study_summary, trial_page, window
    from trainwright.ui.study_follower import StudyFollower

    [count] = re.findall(r"^trials: 1 (\w+)", status(folder), flags=re.MULTILINE)
    content = json.loads(status(folder, "--json").splitlines()[-1])
    page = write_report(folder / "study").read_text()
    follower = StudyFollower(folder / "study", "study")
    follower.catch_up()
    with follower.reading() as overview:
        rows = window(overview, Query())["rows"]
        trial = trial_page(overview, 0)
    words = {
        "status": count,
        "json": [name for name, many in content["trials"].items() if many],
        "grants": [grant["state"] for grant in content.get("grants", [])],
        "trial": json.loads(status(folder, "--trial", "0", "--json").splitlines()[-1])["state"],
        "report": re.findall(r"<li class=\"\w+\">1 (\w+)</li>", page),
        "cell": re.findall(r'<td class="state \w+">(\w+)</td>', page),
        "summary": list(study_summary(follower)["counts"]),
        "row": [row["state"] for row in rows],
        "page": trial["state"],
    }
    follower.close()
    return {name: word if isinstance(word, str) else " ".join(word) for name, word in words.items()}


@pytest.fixture
def driver(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    with subprocess.Popen([sys.executable, "slow.py"], cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        journal = tmp_path / "study" / "ledger" / "journal"
        wait_until(lambda: any('"epoch":2' in path.read_text() for path in journal.glob("*")))
        yield process
        process.send_signal(signal.SIGCONT)
        process.kill()


def test_a_driver_that_stands_still_and_then_is_killed(driver, tmp_path):
    assert set(shown(tmp_path).values()) == {"running"}
    driver.send_signal(signal.SIGSTOP)
    wait_until(lambda: stopped(driver.pid))
    for beaten in (tmp_path / "study" / "ledger" / "beats").iterdir():
        at = beaten.stat().st_mtime - 90
        os.utime(beaten, (at, at))
    assert set(shown(tmp_path).values()) == {"silent"}
    driver.send_signal(signal.SIGCONT)
    driver.kill()
    driver.wait()
    assert set(shown(tmp_path).values()) == {"lost"}


@pytest.mark.slow
def test_a_driver_that_is_asked_to_end(driver, tmp_path):
    """Whether it can write that it leaves or not: nobody says that its trial runs, and all say the same."""
    driver.terminate()
    driver.wait()
    words = shown(tmp_path)
    words.pop("grants")  # of a trial that was paused there are none
    assert len(set(words.values())) == 1
    assert set(words.values()) < {"lost", "paused"}


def stopped(pid):
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(("host", "age", "left"), list(product(["here", "gone", "elsewhere"], [0, 90, None], [0, 1])))
def test_what_is_known_of_a_writer_decides_the_word(tmp_path, host, age, left):
    """Its process, where that can be seen; else the time since its last beat; goodbye said is gone."""
    ledger = DirectoryLedger(tmp_path, create=True)
    here = Writer.here()
    writer = {"here": here, "gone": replace(here, process_start="1"), "elsewhere": replace(here, host="other")}[host]
    records = [facts.joined(writer, session=1), facts.started(0, 1, slot="0", devices=[], resumed_epoch=0)]
    ledger.append(records)
    ledger.heartbeat()
    beaten = tmp_path / "beats" / ledger.writer
    if age is None:
        beaten.unlink()
    else:
        at = beaten.stat().st_mtime - age
        os.utime(beaten, (at, at))
    if left:
        ledger.append([facts.left()])
    state = fold(ledger.read()[0])
    expected = "lost" if left or host == "gone" else "running" if age == 0 else "silent"
    assert under_way(ledger, state) == {0: expected}


def test_nothing_under_way():
    assert under_way(MemoryLedger(), State()) == {}
