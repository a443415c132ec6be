"""Mistakes in study files: one sentence each, exit status 2, before anything runs."""

import re

import pytest

from trainwright.study import Study

RULE = '[rule]\nname = "ASHA"\n'

BAD = {
    "no toml": (("[study]", "[study"), "study.toml': it is no valid TOML"),
    "unknown table": (("[engine]", "[enigne]"), "study.toml: 'enigne' is unknown; allowed: .*did you mean 'engine'"),
    "unknown key": (("trials = 4", "trail = 4"), r"\[study\]: 'trail' is unknown; allowed: .*did you mean 'tr"),
    "no train": (
        ('train = "cli_training:train"', ""),
        r"\[study\]: 'train' is missing \('module:function' that trains a trial\)",
    ),
    "no objectives": (('objectives = "min val_loss"', ""), r"\[study\]: 'objectives' is missing"),
    "objective of no direction": (
        ('"min val_loss"', '"val_loss"'),
        "objective 'val_loss' lacks a direction; write 'min",
    ),
    "objectives of no text": (
        ('"min val_loss"', "5"),
        r"\[study\] objectives: got 5; allowed: 'min val_loss', or a list",
    ),
    "train of no text": (('"cli_training:train"', "5"), "train: got 5; allowed: 'module:function'"),
    "no such module": (("cli_training:", "cli_trainig:"), "train: there is no module 'cli_trainig' on the path"),
    "no such function": (
        (":train", ":trian"),
        "cli_training has no 'trian'; functions there: fails, train, .*did you m",
    ),
    "directory of no text": (
        ('directory = "', 'require = []\ndirectory = 5 # "'),
        r"\[study\] directory: got 5; allowed: a",
    ),
    "seed": (("seed = 3", "seed = -1"), "seed: got -1; allowed: a whole number >= 0"),
    "trials of no number": (
        ("trials = 4", 'trials = "4"'),
        "run.trials: got '4'; allowed: a whole number >= 1",
    ),
    "no trials": (("trials = 4", "trials = 0"), "run.trials: got 0; allowed: a whole number >= 1"),
    "half a trial": (("trials = 4", "trials = 1.5"), "run.trials: got 1.5; allowed: a whole number >= 1"),
    "endless": (("trials = 4", ""), "got no budget for an endless space; give trials=, deadline= or wall_seconds="),
    "wall seconds": (("trials = 4", 'wall_seconds = "1h"'), "run.wall_seconds: got '1h'; allowed: a number > 0"),
    "requirement of no list": (
        ("seed = 3", 'require = "x < 1"'),
        r"\[study\] require: got 'x < 1'; allowed: a list of",
    ),
    "constraints of no text": (
        ("seed = 3", "constraints = 5"),
        r"\[study\] constraints: got 5; allowed: 'peak_bytes <=",
    ),
    "constraint of no sign": (
        ("seed = 3", 'constraints = ["size"]'),
        "constraint 'size' is not of the form 'METRIC <=",
    ),
    "requirement of unknown": (("seed = 3", 'require = ["y < 1"]'), "y"),
    "no space": (("[space.x]", "[searcher.x]"), r"study.toml: no \[space.NAME\] table; give one per parameter"),
    "space of no tables": (("[space.x]", "[space]"), r"\[space.kind\]: got 'float'; allowed: a table"),
    "unknown kind": (('"float"', '"flaot"'), "x: kind 'flaot' is unknown; allowed: .*did you mean 'float'"),
    "no bound": (("high = 1.0", ""), "x: float needs 'high'"),
    "bounds reversed": (("high = 1.0", "high = -1.0"), "x: .*-1"),
    "log at zero": (("high = 1.0", "high = 1.0\nlog = true"), "x: .*log"),
    "no parent": (("high = 1.0", 'high = 1.0\nwhen = { equals = ["y", 1] }'), "x: condition names 'y'"),
    "its own parent": (("high = 1.0", 'high = 1.0\nwhen = { less = ["x", 1] }'), "conditions form a cycle: x -> x"),
    "unknown argument": (("high = 1.0", "high = 1.0\nstpe = 1"), "x: 'stpe' is no argument of float; known: .*'step'"),
    "unknown searcher": (
        ("RandomSearcher", "RandmSearcher"),
        r"\[searcher\] name: got 'RandmSearcher'; .*did you mean",
    ),
    "searcher without name": (
        ('name = "RandomSearcher"', ""),
        r"\[searcher\] name: got nothing; allowed: DefaultSearcher, Evolution",
    ),
    "searcher of no table": (("[study]", 'searcher = "RandomSearcher"\n[study]'), "is no valid TOML"),
    "engine's argument": (
        ("workers = 0", "wrokers = 0"),
        r"\[engine\] Local: 'wrokers' is unknown; .*did you mean 'worke",
    ),
    "engine's value": (("workers = 0", 'workers = "all"'), "Local.workers: got 'all'; allowed: a whole number >= 0"),
    "limit without process": (
        ("workers = 0", "workers = 0\ntimeout_seconds = 1"),
        "Local.timeout_seconds: got 1 with wor",
    ),
}

ADDED = {
    "rule without length": (RULE, r"\[rule\] ASHA: 'max_epochs' is missing; arguments: max_epochs, min_epochs, eta"),
    "rule's value": (RULE + "max_epochs = 9\neta = 1", "ASHA.eta: got 1; allowed: a number > 1"),
    "unknown rule": (
        '[rule]\nname = "Asha"',
        r"\[rule\] name: got 'Asha'; allowed: ASHA, AnyOf, FixedEpochs, Hyperband",
    ),
    "policy too large": ('[policy]\nname = "Fixed"\ndevices = 2', "Fixed.devices: got 2, the engine has 1 slots"),
    "ensemble's setting": (
        "[ensemble]\nmax_memebrs = 2",
        r"\[ensemble\]: 'max_memebrs' is unknown; .*did you mean 'max_m",
    ),
    "ensemble's value": (
        "[ensemble]\nmax_members = 0",
        r"\[ensemble\] max_members: got 0; allowed: a whole number >= 1",
    ),
    "ensemble's cost": (
        '[ensemble]\ncost_factor = "low"',
        r"\[ensemble\] cost_factor: got 'low'; allowed: a number > 0",
    ),
    "ensemble's metric": ('[ensemble]\nmetric = "acuracy"', "metric: got 'acuracy'; .*did you mean 'accuracy'"),
    "ensemble's split": ("[ensemble]\nsplit = 1", r"\[ensemble\] split: got 1; allowed: a name"),
}


def refused(said, sentence):
    """Hold a command to its promise: status 2 and one sentence, no traceback."""
    assert said.status == 2
    [line] = said.err.splitlines()
    assert line.startswith("trainwright: ")
    assert re.search(sentence, line), line
    assert said.out == ""


@pytest.mark.parametrize(("replacement", "sentence"), BAD.values(), ids=BAD)
def test_a_mistake(trainwright, study_file, replacement, sentence):
    refused(trainwright("run", study_file(replacement)), sentence)


@pytest.mark.parametrize(("added", "sentence"), ADDED.values(), ids=ADDED)
def test_a_mistake_in_a_further_table(trainwright, study_file, added, sentence):
    refused(trainwright("run", study_file(added="\n" + added + "\n")), sentence)


def test_a_table_given_as_a_value(trainwright, study_file):
    file = study_file(('[searcher]\nname = "RandomSearcher"', ""))
    file.write_text('searcher = "RandomSearcher"\n' + file.read_text())
    refused(trainwright("run", file), r"\[searcher\]: got 'RandomSearcher'; allowed: a table")


def test_a_study_of_another_space(trainwright, study_file):
    """A directory that holds another study is refused, naming the first difference."""
    assert trainwright("run", study_file(), "--quiet").status == 0
    refused(
        trainwright("run", study_file(("high = 1.0", "high = 2.0"))), r"x = Float\(0.0, 1.0\), now Float\(0.0, 2.0\)"
    )
    refused(trainwright("run", study_file(("seed = 3", "seed = 4"))), "was made with seed 3, now 4")
    refused(
        trainwright("run", study_file(("min val_loss", "max val_loss"))), "objectives min val_loss, now max val_loss"
    )


def test_a_study_that_is_kept_nowhere(trainwright, study_file):
    """Without a directory the search runs in memory, and its result is the output."""
    file = study_file()
    file.write_text(re.sub(r'directory = ".*"\n', "", file.read_text()))
    said = trainwright("run", file)
    assert (said.status, "4 of 4 trials have a result" in said.out) == (0, True), said.err


class TestFiles:
    def test_no_such_file(self, trainwright, tmp_path):
        refused(trainwright("run", tmp_path / "none.toml"), r"none.toml': there is no such file; allowed: a study file")
        refused(trainwright("run", tmp_path), "it is a folder; allowed: a study file")

    def test_another_kind_of_file(self, trainwright, tmp_path):
        (tmp_path / "study.yaml").write_text("study:\n")
        refused(trainwright("run", tmp_path / "study.yaml"), "study.yaml': it ends in '.yaml'; allowed: a study file")

    @pytest.mark.parametrize(
        ("name", "code", "more", "sentence"),
        [
            (
                "without_study.py",
                "",
                [],
                r"without_study.py has no study; define study = tw.Study\(...\) at its top level",
            ),
            ("of_no_study.py", "study = 5", [], "of_no_study.py has no study; define study"),
            (
                "without_train.py",
                "study = STUDY",
                [],
                r"without_train.py has no function train; define def train\(trial\)",
            ),
            ("json.py", "", [], r"json.py has the name of another module \(.*json/__init__.py\); rename the file"),
            (
                "with_directory.py",
                "",
                ["--directory", "x"],
                "--directory goes with a .toml file; .* makes its own study",
            ),
            (
                "with_engine.py",
                "study, train, engine = STUDY, print, None",
                ["--workers", "2"],
                "--workers 2 and .*with_engine.py both name an engine; leave one out",
            ),
        ],
    )
    def test_python_files(self, trainwright, tmp_path, name, code, more, sentence):  # noqa: PLR0917 -- a table's columns
        made = "tw.Study(tw.Space(x=tw.Float(0, 1)), 'min val_loss')"
        (tmp_path / name).write_text(f"import trainwright as tw\n{code.replace('STUDY', made)}\n")
        refused(trainwright("run", tmp_path / name, *more), sentence)


def test_a_study_keeps_its_searcher_from_the_command_line(tmp_path, trainwright, study_file):
    """A study file without [searcher], and a worker, go on with the one that the study has."""
    own = '[searcher]\nname = "EvolutionSearcher"\npopulation = 5\ninitial = 4\n'
    for directory, searcher, trials in (("whole", own, 20), ("parts", own, 8), ("parts", "", 14)):
        place = (f'"{tmp_path / "study"}"', f'"{tmp_path / directory}"')
        path = study_file(place, ('[searcher]\nname = "RandomSearcher"\n', searcher))
        assert trainwright("run", path, "--trials", trials, "--quiet").status == 0
    assert trainwright("worker", tmp_path / "parts", "--trials", 20, "--workers", 0, "--quiet").status == 0
    with Study.open(tmp_path / "whole") as whole, Study.open(tmp_path / "parts") as parts:
        assert [(t.params, t.origin) for t in parts.trials] == [(t.params, t.origin) for t in whole.trials]
        assert {t.origin["searcher"] for t in parts.trials} == {"evolution"}
