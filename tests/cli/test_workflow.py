"""`trainwright run` over several stages: skipped when unchanged, alone, killed anywhere, and sentences for mistakes."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.cli.workflow.study_file import STAGES

HERE = Path(__file__).parent

# Loads torch once and runs each command in a fork of itself. A command kills itself at the N-th point: before a batch,
# or before something is opened for writing, made, renamed or removed in the study's folder. So a number names a point
# of the work, whatever the machine's speed; 0 is none.
SERVER = """
import json, os, signal, sys
import torch, torch._dynamo  # the second else by every fork, with its first optimizer
import trainwright.cli.workflow.study_file, trainwright.ensemble, trainwright.report.html
import trainwright.study.forecast.search_plan
from trainwright.cli import main

def writes(event, args):
    if not args or not isinstance(args[0], (str, os.PathLike)):
        return False
    if event == "open":
        return args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    return event in {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}

def command(folder, at, arguments):
    os.chdir(folder)
    study, count = os.path.abspath("study"), 0
    for stream in (1, 2):
        os.dup2(os.open("said", os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)

    def hook(event, args):
        nonlocal count
        inside = writes(event, args) and os.path.abspath(os.fspath(args[0])).startswith(study)
        if inside or event == "workflow.batch":
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    sys.argv = ["trainwright", *arguments]
    try:
        main()
    except SystemExit as end:
        print(f"{count} points", flush=True)
        os._exit(end.code or 0)

for folder, at, arguments in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        command(folder, at, arguments)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
SEARCH = ("--stage", "plan", "--stage", "search", "--stage", "ensemble")  # all but those that start processes


@pytest.fixture
def project(tmp_path):
    """Return a folder with the small workflow and its training code."""
    return copied(tmp_path)


def copied(folder):
    """Copy the small workflow and its training code into a folder, and return it."""
    for name in ("workflow.toml", "workflow_training.py"):
        shutil.copy(HERE / name, folder / name)
    return folder


def runs(project, *points, more=()):
    """Run the workflow once for each point, in processes that end there; return how each ended."""
    jobs = [(str(project), at, ["run", "workflow.toml", *more]) for at in points]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SERVER, json.dumps(jobs)],
        env=environment, capture_output=True, text=True, timeout=3000, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.splitlines()]


def manifest(project):
    """Return the manifest of the exported ensemble, which holds the digest of every weight."""
    return (project / "study/ensemble/manifest.json").read_bytes()


def find_front(said):
    """Return how many points a whole run passed."""
    return int(re.search(r"(\d+) points", said)[1])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a folder in which the small workflow has run once, and what it said."""
    folder = copied(tmp_path_factory.mktemp("done"))
    status = runs(folder, 0)
    said = (folder / "said").read_text()
    assert status == [0], said
    return folder, said


def test_killed_and_resumed(project, whole):
    """Killed in the midst of the search, the workflow comes to the same ensemble, bit for bit."""
    points = find_front(whole[1])
    ended = runs(project, random.Random(0).randrange(points // 8, points // 2), 0, more=SEARCH)
    assert ended == [-signal.SIGKILL, 0], (project / "said").read_text()
    assert manifest(project) == manifest(whole[0])
    assert json.loads((project / "study/summary.json").read_text())["finished"] == 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_twenty_points(project, whole):
    """Killed at any of twenty points over the whole workflow, it comes to the same ensemble, bit for bit."""
    points = find_front(whole[1])
    draw = random.Random(1)
    for number in range(20):  # one in each twentieth of the work
        at = 1 + draw.randrange(number * points // 20, (number + 1) * points // 20)
        shutil.rmtree(project / "study", ignore_errors=True)
        assert runs(project, at, 0) == [-signal.SIGKILL, 0], (at, (project / "said").read_text())
        assert manifest(project) == manifest(whole[0]), at


@pytest.fixture
def done(whole, tmp_path, monkeypatch):
    """Return a copy of that folder, which is the current directory; its own training code is imported, as by a user."""
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("workflow_training", None)
    yield tmp_path
    sys.modules.pop("workflow_training", None)


def stages(said):
    """Return what a run said of each stage: "", "unchanged, skipped" or "again, ..."."""
    return {name: rest.lstrip(": ") for name, rest in re.findall(r"^== (\w+)(.*)$", said.out, re.MULTILINE)}


def edit(folder, old, new):
    """Change the study file."""
    file = folder / "workflow.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


SKIPPED = "unchanged, skipped"


class TestStages:
    def test_first_run_does_all_in_order(self, whole):
        """Each stage says what came out, and the end says how to go on."""
        folder, said = whole
        assert re.findall(r"^== (.*)$", said, re.MULTILINE) == list(STAGES)
        for line in (
            "memory: ",
            "scaling: ",
            "forecast: ",
            "6 of 6 trials have a result",
            "best ensemble",
            "exported: ",
        ):
            assert line in said
        assert "continue:   trainwright run workflow.toml --trials 12" in said
        summary = json.loads((folder / "study/summary.json").read_text())
        names = {"plan", "single_test_accuracy", "ensemble_test_cross_entropy", "ensemble_trials", "allocation"}
        assert names <= set(summary)
        assert summary["deployment"]["rows"] == 120
        assert summary["deployment"]["processes"] == sum(
            batch > 0 for row in summary["allocation"]["matrix"] for batch in row
        )
        assert "placed by size alone" in said

    def test_second_run_skips_all(self, trainwright, done):
        """Nothing is written but the summary, which is the same."""
        before = {path: path.stat().st_mtime_ns for path in done.rglob("*") if path.is_file()}
        summary = (done / "study/summary.json").read_bytes()
        said = trainwright("run", "workflow.toml")
        assert said.status == 0, said.err
        assert stages(said) == dict.fromkeys(STAGES, SKIPPED)
        assert (done / "study/summary.json").read_bytes() == summary
        after = {path: path.stat().st_mtime_ns for path in done.rglob("*") if path.is_file()}
        assert {path.name for path in before if after.get(path) != before[path]} <= {"summary.json"}

    def test_a_changed_table_repeats_its_stage_alone(self, trainwright, done):
        edit(done, "max_members = 2", "max_members = 1")
        said = trainwright("run", "workflow.toml", "--json")
        assert stages(said) == {
            "plan": SKIPPED,
            "search": SKIPPED,
            "ensemble": "again, settings changed",
            "allocation": "again, ensemble changed",
            "deployment": "again, allocation, ensemble changed",
        }
        told = json.loads(said.out.splitlines()[-1])
        assert len(told["ensemble_trials"]) == 1
        assert len(json.loads(manifest(done))["members"]) == 1

    def test_changed_training_code_runs_the_search_again(self, trainwright, done):
        """What rests on the file of the training function runs again; results stay, and a line says so."""
        with (done / "workflow_training.py").open("a") as file:
            file.write("# another word\n")
        said = trainwright("run", "workflow.toml", "--stage", "search", "--stage", "ensemble")
        assert stages(said) == {"search": "again, training code changed", "ensemble": SKIPPED}
        assert "results stay as the earlier code made them" in said.out
        assert "6 of 6 trials have a result" in said.out

    def test_more_trials_repeat_what_rests_on_them(self, trainwright, done):
        said = trainwright("run", "workflow.toml", "--trials", 7, *SEARCH)
        again = ["again, trials changed", "again, budget changed", "again, library changed"]
        assert list(stages(said).values()) == again

    def test_what_was_deleted_is_made_again(self, trainwright, done):
        first = manifest(done)
        shutil.rmtree(done / "study/ensemble")
        said = trainwright("run", "workflow.toml")
        assert stages(said)["ensemble"] == "again, ensemble/manifest.json is missing or was changed"
        assert manifest(done) == first

    def test_a_damaged_record_repeats_its_stage(self, trainwright, done):
        (done / "study/stages/ensemble.json").write_text('{"inputs": 5')
        said = trainwright("run", "workflow.toml")
        assert stages(said) == {**dict.fromkeys(STAGES, SKIPPED), "ensemble": ""}

    def test_one_stage_alone(self, trainwright, done):
        said = trainwright("run", "workflow.toml", "--stage", "ensemble", "--force")
        assert (said.status, stages(said)) == (0, {"ensemble": ""})

    def test_a_plan_needs_no_study(self, trainwright, done):
        shutil.rmtree(done / "study")
        said = trainwright("run", "workflow.toml", "--stage", "plan", "--json")
        assert (said.status, stages(said)) == (0, {"plan": ""})
        assert not (done / "study/ledger").exists()
        assert json.loads(said.out.splitlines()[-1])["plan"]["cost"]["device_hours"] > 0

    def test_an_outdated_ensemble_is_not_in_the_summary(self, trainwright, done):
        said = trainwright("run", "workflow.toml", "--stage", "search", "--trials", 7, "--json")
        assert said.status == 0
        assert "ensemble_trials" not in json.loads(said.out.splitlines()[-1])


class TestPlan:
    def test_a_search_beyond_its_limit_is_not_begun(self, trainwright, done):
        shutil.rmtree(done / "study")
        edit(done, "samples = 120", "samples = 120\nmax_device_hours = 1e-9")
        said = trainwright("run", "workflow.toml")
        assert said.status == 1
        assert re.search("plan: 6 trials are forecast to take .* device-hours, more than max_device_hours", said.err)
        assert not (done / "study/ledger").exists()

    def test_nothing_fits(self, trainwright, done):
        shutil.rmtree(done / "study")
        edit(done, "samples = 120", "samples = 120\nmax_memory = 100")
        said = trainwright("run", "workflow.toml")
        assert said.status == 1
        assert re.search("plan: none of 2 configurations fits; the largest does not fit: ", said.err)


MISTAKES = {
    "stage": (None, ("--stage", "ensembel"), r"--stage: got 'ensembel'; allowed: 'plan', .*did you mean 'ensemble'"),
    "stage without table": (
        ("[ensemble]\nmax_members = 2", ""),
        ("--stage", "ensemble"),
        r"--stage: workflow.toml has no \[ensemble\]; stages there: plan, search, alloc",
    ),
    "unknown key": (
        ("samples = 120", "sampels = 120"),
        (),
        r"\[plan\]: 'sampels' is unknown; .*did you mean 'samples'",
    ),
    "missing key": (("samples = 120", ""), (), r"\[plan\]: 'samples' is missing \(samples of an epoch\); allowed: "),
    "a number": (("samples = 120", "samples = 0"), (), r"\[plan\] samples: got 0; allowed: a whole number >= 1"),
    "memory": (
        ("samples = 120", 'samples = 120\nmax_memory = "much"'),
        (),
        r"\[plan\] max_memory: got 'much'; allowed: a size such as '16 GiB'",
    ),
    "function": (
        (":profile_of", ":profil"),
        (),
        r"\[plan\] profile: workflow_training has no 'profil'; functions there: .*did you mean 'profile_of'",
    ),
    "pick": (
        ("max_members = 2", 'pick = "bset"'),
        (),
        r"\[ensemble\] pick: got 'bset'; allowed: 'best', 'fal",
    ),
    "space": (("values = [4, 16]", "values = [4, 8]"), (), "study was made with .*width.*; use a new directory"),
    "no export": (
        None,
        ("--stage", "allocation", "--directory", "none"),
        r"stage allocation needs none/ensemble/manifest.json, which is not there; run .* none --stage ensemble",
    ),
    "devices": (
        ('devices = "cpu"', "devices = 5"),
        (),
        r"\[allocation\] devices: got 5; allowed: a text such",
    ),
    "no such device": (('devices = "cpu"', 'devices = "cuda:7"'), ("--stage", "allocation"), "cuda:7"),
    "limit": (("rows = ", "quorum = 2\nrows = "), (), "quorum: got 2; allowed: a number above 0 and at most 1"),
    "service's key": (("rows = ", "row = "), (), r"\[deployment\]: 'row' is unknown; .*did you mean 'rows'"),
    "no study": (
        None,
        ("--stage", "ensemble", "--directory", "none"),
        "stage ensemble needs a study in none, where th",
    ),
    "no folder": (('directory = "study"', ""), (), r"stages need a study that is kept; give \[study\] directory"),
}


@pytest.mark.parametrize(("change", "more", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake(trainwright, done, change, more, sentence):
    """One sentence, exit status 2, and nothing was changed."""
    if change is not None:
        edit(done, *change)
    before = manifest(done)
    said = trainwright("run", "workflow.toml", *more)
    assert said.status == 2
    [line] = said.err.splitlines()
    assert re.search(sentence, line), line
    assert manifest(done) == before
