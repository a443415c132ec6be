"""Words that no command takes, and paths where no such file is: one sentence on stderr, and exit status 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import trainwright as tw
from trainwright.cli.main import build_app

APP = build_app()


def refused(said):
    """Return the one sentence that a command refused its input with."""
    assert said.status == 2, said
    assert said.out == ""
    [sentence] = said.err.splitlines()
    assert sentence.startswith("trainwright: ")
    return sentence.removeprefix("trainwright: ")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("frob",), ["unknown command frob of `trainwright`", "allowed: run, worker", "see `trainwright --help`"]),
        (("memory", "pln"), ["unknown command pln of `trainwright memory` (did you mean 'plan'?)"]),
        (("run", "--trails", "3", "x"), ["unknown option --trails of `trainwright run` (did you mean '--trials'?)"]),
        (
            ("plan", "--bogus", "3"),
            ["unknown option --bogus of `trainwright plan model`; allowed: --sample, --loss, --fuse,"],
        ),
        (("plan", "--batsh", "3"), ["unknown option --batsh of `trainwright plan model` (did you mean '--batch'?)"]),
        (("run",), ["missing file of `trainwright run`: a study file", "see `trainwright run --help`"]),
        (("memory", "plan", "x.json"), ["missing --budget of `trainwright memory plan`: 8GiB, a number of bytes"]),
        (("memory", "plan", "x.json", "--budget"), ["option '--budget' requires an argument"]),
        (("status", "a", "b"), ["`trainwright status`: got unexpected extra argument", "(b)"]),
        (("ui", "x", "--port", "web"), ["--port of `trainwright ui`: 'web' is not a valid integer"]),
        (
            ("memory", "curve", "x.json", "--points", "1"),
            ["--points of `trainwright memory curve`: 1 is not in the range x>=3"],
        ),
    ],
    ids=" ".join,
)
def test_a_usage_error_is_one_sentence(trainwright, words, parts):
    sentence = refused(trainwright(*words))
    for part in parts:
        assert part in sentence


def test_nothing_given_is_answered_by_the_help(trainwright):
    for words in ((), ("memory",)):
        said = trainwright(*words)
        assert (said.status, said.out) == (2, "")
        assert said.err.startswith(f"{' '.join(('Usage: trainwright', *words))} [OPTIONS] COMMAND")


@pytest.mark.parametrize(
    "line",
    [
        "run {}.toml",
        "run {}.py",
        "run {}",
        "worker {}",
        "status {}",
        "report {}",
        "ui {}",
        "export {} --csv out.csv",
        "ensemble {}",
        "simulate {}.toml",
        "checkpoint inspect {}.pt",
        "checkpoint verify {}.pt",
        "checkpoint verify-resume {}.py --steps 2",
        "checkpoint diff {}.pt {}.pt",
        "checkpoint convert {}.pt out.safetensors --to safetensors",
        "plan {}.json --batch 4",
        "plan none.json --batch 4 --cluster {}.toml",
        "plan none.json --batch 4 --cluster {}.yaml",
        "plan search {}.py",
        "memory plan {}.json --budget 0.5",
        "memory plan {}.txt --budget 0.5",
        "memory plan {} --budget 0.5",
        "memory curve {}.json",
        "memory explain {}.json",
        "serve allocate {}",
        "serve run {}",
    ],
)
def test_no_file_a_folder_an_empty_and_a_binary_one(trainwright, tmp_path, monkeypatch, line):
    """Every command that takes a path says which it was given and what it takes; never what the system calls it."""
    monkeypatch.chdir(tmp_path)
    words = line.split()
    [name, *_] = [word for word in words if word.startswith("{}")]
    (tmp_path / name.format("folder")).mkdir()
    (tmp_path / name.format("empty")).write_bytes(b"")
    (tmp_path / name.format("binary")).write_bytes(bytes(range(256)))
    for kind in ("missing", "folder", "empty", "binary"):
        sentence = refused(trainwright(*(word.format(kind) for word in words)))
        assert name.format(kind) in sentence, sentence
        assert "Errno" not in sentence
        assert "codec" not in sentence


def test_what_cannot_be_written(trainwright, tmp_path):
    """A result whose place is no place is refused too."""
    stage = tw.memory.Stage(forward_seconds=1.0, backward_seconds=2.0, output_bytes=8, saved_bytes=16)
    tw.memory.Chain(stages=(stage,)).save(tmp_path / "chain.json")
    nowhere = tmp_path / "nowhere" / "plan.json"
    said = trainwright("memory", "plan", tmp_path / "chain.json", "--budget", "1GiB", "--out", nowhere)
    assert said.status == 2
    assert f"plan file '{nowhere}': it cannot be written (no such file or directory)" in said.err


def every_command():
    """Return the words of every command and group, the program itself among them."""
    found, waiting = [], [((), APP)]
    while waiting:
        words, command = waiting.pop()
        found.append(words)
        waiting += [((*words, name), each) for name, each in getattr(command, "commands", {}).items()]
    return sorted(found)


@pytest.mark.parametrize("words", every_command(), ids=lambda words: " ".join(words) or "trainwright")
def test_help_is_whole_and_unknown_options_list_the_known(trainwright, words):
    """`-h` is `--help`, no command's sentence is cut in it, and an unknown option is answered with those there are."""
    short, long = trainwright(*words, "-h"), trainwright(*words, "--help")
    assert (short.status, short.out) == (0, long.out)
    assert "-h, --help" in short.out
    assert "..." not in short.out.partition("Commands:")[2]
    sentence = refused(trainwright(*words, "--frobnicate"))
    known = sentence.partition("; allowed: ")[2].partition(";")[0].split(", ")
    shown = trainwright(
        *sentence.partition("see `trainwright ")[2].rstrip("`").split()
    ).out  # of `plan` it is a command's
    assert "--help" in known
    assert all(option.startswith("--") and option in shown for option in known)


def test_the_version(trainwright):
    said = trainwright("--version")
    assert (said.status, said.out) == (0, f"trainwright {tw.__version__}\n")


@pytest.mark.parametrize(
    ("typed", "offered"), [("sta", "status"), ("checkpoint ver", "verify"), ("status --js", "--json")]
)
def test_a_shell_can_complete_a_line(typed, offered):
    """The completion that a shell takes from `_TRAINWRIGHT_COMPLETE=bash_source trainwright` asks the program."""
    words = f"trainwright {typed}"
    asked = {"_TRAINWRIGHT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run(
        [Path(sys.executable).with_name("trainwright")], env={**os.environ, **asked}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert f"plain,{offered}" in done.stdout.split()
