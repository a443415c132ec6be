"""`trainwright simulate`: the table, the JSON line, the picture, and what it refuses."""

import json
import re

import numpy as np
import pytest

FILE = """
[study]
trials = 16

[rule]
name = "ASHA"
max_epochs = 8
eta = 2

[simulate]
gpus = 8
gpus_per_node = 4
seeds = 3
scaling = 0.8

[simulate.task]
epoch_seconds = 10

[simulate.schedulers.published]
policy = { name = "DoublingAsPublished", start = 4 }

[simulate.schedulers.static]
policy = { name = "BestStatic", sizes = [1, 2] }

[simulate.schedulers.random]
rule = { name = "FixedEpochs", max_epochs = 8 }
"""


@pytest.fixture
def file(tmp_path):
    """Return a function that writes the file with replacements and returns its path."""

    def write(*replacements, added=""):
        text = FILE
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "cluster.toml"
        path.write_text(text + added)
        return path

    return write


def simulated(trainwright, path, *more):
    said = trainwright("simulate", path, "--json", *more)
    assert said.status == 0, said.err
    content = json.loads(said.out.splitlines()[-1])
    return said.out, {(each["gpus"], each["scheduler"]): each for each in content["forecasts"]}


def test_schedulers_side_by_side(trainwright, file):
    """The file's own scheduler comes first, others take from it what they do not name; the same each time."""
    out, found = simulated(trainwright, file())
    assert [name for _, name in found] == ["this file", "published", "static", "random"]
    own, static = found[8, "this file"], found[8, "static"]
    assert own["rule"] == static["rule"] == {"name": "ASHA", "max_epochs": 8, "eta": 2}
    assert static["policy"]["name"] == "Fixed"
    assert found[8, "random"]["full"]["mean"] == 16
    spread = own["makespan_seconds"]
    assert spread["low"] <= spread["mean"] <= spread["high"]
    assert "8 GPUs, 16 trials; means of 3 simulated studies" in out
    assert re.search(r"^this file \(1 GPU a trial\) +\d", out, re.MULTILINE)
    assert simulated(trainwright, file())[1] == found


def test_stalls_are_told(trainwright, file):
    """A policy that asks for more than there is shows so, and first full models that never come are said so."""
    out, found = simulated(trainwright, file())
    assert found[8, "published"]["stalls"] == 3
    assert "published: 3 of 3 studies stalled: trial " in out
    assert "waits for 16 GPUs, there are 8" in out
    assert found[8, "published"]["first_full_seconds"]["mean"] is None
    assert re.search(r"^published .* never ", out, re.MULTILINE)


def test_options_override(trainwright, file):
    """Several clusters, other trials and seeds: a table each."""
    out, found = simulated(trainwright, file(), "--gpus", 16, "--gpus", 32, "--trials", 5, "--seeds", 1)
    assert {gpus for gpus, _ in found} == {16, 32}
    assert found[16, "random"]["full"]["mean"] == 5
    assert out.count("5 trials; means of 1 simulated studies") == 2


def test_a_deadline(trainwright, file):
    """What is complete by then counts: fewer trials than without it."""
    out, found = simulated(trainwright, file(), "--deadline-seconds", 100, "--seeds", 2)
    assert "8 GPUs, 16 trials, deadline 1 min 40 s; means of 2" in out
    assert found[8, "random"]["full"]["mean"] < 16
    assert found[8, "random"]["makespan_seconds"]["high"] <= 100


def test_a_table_as_task(trainwright, file, tmp_path):
    """Curves come from a file beside the study file; what it has not is refused, or told."""
    np.savez(tmp_path / "curves.npz", valid_loss=np.linspace(1, 0, 30)[:, None] / np.arange(1, 9)[None, :])
    table = ("epoch_seconds = 10", 'table = "curves.npz"\nepoch_seconds = 10')
    _, found = simulated(trainwright, file(table))
    assert found[8, "random"]["best_loss"]["low"] >= 0
    said = trainwright("simulate", file(table), "--trials", 40)
    assert (said.status, "more than the table's 30 rows" in said.err) == (2, True)
    nearest = (table[0], table[1] + '\nmissing = "nearest"')
    out, _ = simulated(trainwright, file(nearest), "--trials", 40)
    assert "random: for 30 trials of all studies the table had not what was asked" in out


def test_a_studys_own_curves(trainwright, study_file, file, tmp_path):
    """The ledger of a study that has run, or runs, is a task too."""
    assert trainwright("run", study_file(), "--quiet").status == 0
    own = [("epoch_seconds = 10", 'study = "study"'), ("max_epochs = 8", "max_epochs = 3")]
    _, found = simulated(trainwright, file(*own))
    assert found[8, "random"]["failed"]["mean"] == 0
    said = trainwright("simulate", file(("epoch_seconds = 10", 'study = "nowhere"')))
    assert said.status == 2
    assert "no study in" in said.err


def test_run_leaves_it_alone(trainwright, study_file):
    """One file may say what to run and what to simulate."""
    path = study_file(added='\n[rule]\nname = "ASHA"\nmax_epochs = 3\n\n[simulate]\ngpus = 4\ngpus_per_node = 4\n')
    assert trainwright("run", path, "--quiet").status == 0
    _, found = simulated(trainwright, path, "--seeds", 1)
    assert found[4, "this file"]["full"]["mean"] >= 1


@pytest.mark.parametrize(
    ("replacement", "sentence"),
    [
        (("gpus = 8\n", "gpus = 0\n"), r"\[simulate\] gpus: got 0; allowed: a whole number >= 1"),
        (("gpus = 8\n", ""), r"\[simulate\]: 'gpus' is missing \(devices of the cluster\)"),
        (("gpus = 8\n", "gpus = 10\n"), r"gpus: got 10 in nodes of 4; allowed: whole nodes, such as 8 or 12"),
        (("gpus = 8\n", "gpu = 8\n"), r"'gpu' is unknown; allowed: trials, .*did you mean 'gpus'"),
        (("scaling = 0.8", "scaling = 1.5"), r"Scaling.alpha: got 1.5; allowed: a number above 0 and at most 1.2"),
        (("scaling = 0.8", 'scaling = "fast"'), r"scaling: got 'fast'; allowed: a number, or an exponent such as 0.9"),
        (("scaling = 0.8", "scaling = { two = 1.8 }"), r"got the keys two; allowed: numbers of devices"),
        (("scaling = 0.8", "restart_seconds = -1"), r"Simulated.restart_seconds: got -1; allowed: a number >= 0"),
        (("scaling = 0.8", "drops_per_second = -1"), r"Simulated.drops_per_second: got -1"),
        (("epoch_seconds = 10", "epoch = 10"), r"'epoch' is unknown; allowed: epoch_seconds"),
        (("epoch_seconds = 10", 'table = "none.npz"'), r"there is no file .*none.npz"),
        (("trials = 16", "seed = 0"), r"nothing ends the study; give trials, deadline_seconds, wall_seconds"),
        (("start = 4", "start = 16"), r"Doubling.start: got 16, the engine has 8 slots"),
        (("eta = 2", "eta = 1"), r"ASHA.eta: got 1"),
        (('"FixedEpochs", max_epochs = 8', '"FixedEpochs"'), r"the rule sets no length of a trial"),
        (("published]\npolicy", "published]\npolitics"), r"'politics' is unknown; allowed: rule, policy"),
        (("max_epochs = 8\neta = 2", "max_epochs = 8\neta ="), r"is no valid TOML"),
    ],
)
def test_refusals(trainwright, file, replacement, sentence):
    """Each in one sentence, with status 2, before anything is simulated."""
    said = trainwright("simulate", file(replacement))
    assert said.status == 2
    assert re.search(sentence, said.err), said.err
    assert said.err.count("\n") == 1


def test_more_refusals(trainwright, file, tmp_path):
    """A file that is not there, a picture in an unknown form, no scheduler at all."""
    for arguments, sentence in (
        ([tmp_path / "none.toml"], "there is no such file"),
        ([file(), "--seeds", "0"], "seeds: got 0; allowed: a whole number >= 1"),
    ):
        said = trainwright("simulate", *arguments)
        assert (said.status, sentence in said.err) == (2, True), said.err
    empty = tmp_path / "empty.toml"
    empty.write_text("[simulate]\ngpus = 8\n")
    said = trainwright("simulate", empty, "--trials", 2)
    assert "no scheduler; give a [rule]" in said.err
