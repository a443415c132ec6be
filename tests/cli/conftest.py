"""The command line called in this process, and a study file to call it with."""

import sys
from dataclasses import dataclass

import pytest

from trainwright.cli import main

STUDY = """
[study]
train = "cli_training:train"
objectives = "min val_loss"
directory = "{directory}"
seed = 3
trials = 4

[space.x]
kind = "float"
low = 0.0
high = 1.0

[searcher]
name = "RandomSearcher"

[engine]
name = "Local"
workers = 0
"""


@dataclass
class Said:
    """What a command said, and its exit status."""

    status: int
    out: str
    err: str


@pytest.fixture
def trainwright(monkeypatch, capsys):
    """Return a function that runs `trainwright ARGUMENTS` in this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["trainwright", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return Said(end.value.code or 0, said.out, said.err)

    return run


@pytest.fixture
def study_file(tmp_path):
    """Return a function that writes the study file with replacements and returns its path."""

    def write(*replacements, added=""):
        text = STUDY.format(directory=tmp_path / "study")
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "study.toml"
        path.write_text(text + added)
        return path

    return write
