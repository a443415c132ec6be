"""The documentation builds without a warning, and its reference holds every public name."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.cli.main import build_app
from trainwright.ledger.kinds import KINDS

APP = build_app()

DOCS = Path(__file__).resolve().parents[2] / "docs"
PACKAGES = (
    "space", "cluster", "ledger", "search", "schedule", "checkpoint", "train", "engine", "study", "ensemble", "report",
    "plan", "memory", "profile", "serve", "ui",
)  # fmt: skip


@pytest.mark.parametrize("package", ["", *PACKAGES, "errors"])
def test_reference_has_every_public_name(package, monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    from object_lists import expand_objects

    module = importlib.import_module(f"trainwright.{package}".rstrip("."))
    text = "".join(expand_objects(page.read_text(encoding="utf-8")) for page in (DOCS / "reference").glob("*.md"))
    shown = set(re.findall(r"^\.\. (?:auto|py:)\w+:: (?:[\w.]+\.)?(\w+)", text, re.MULTILINE))
    left_out = {"__version__", "closest", "facts", *PACKAGES}  # facts: its functions are shown one by one
    assert {name for name in module.__all__ if name not in shown} <= left_out


def test_reference_has_every_command(monkeypatch):
    """Its page is made from the commands: each is there, and says what each of its options is for."""
    monkeypatch.syspath_prepend(DOCS)
    from command_help import command_helps

    def commands(command, prefix):
        yield prefix, command
        for name, part in getattr(command, "commands", {}).items():
            yield from commands(part, f"{prefix} {name}")

    known = dict(commands(APP, "trainwright"))
    shown = dict(command_helps())
    assert set(shown) == set(known)
    for name, command in known.items():
        options = [option for option in command.params if option.opts[0].startswith("--")]
        assert [option.name for option in options if not option.help or option.opts[0] not in shown[name]] == [], name


def test_reference_has_every_kind_of_record(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    from record_kinds import kinds_table

    rows = kinds_table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(KINDS)
    assert "<!-- record kinds -->" in (DOCS / "reference" / "ledger.md").read_text()


@pytest.mark.slow
def test_builds_without_warnings(tmp_path):
    pytest.importorskip("sphinx", reason="the documentation's packages are not installed; `make docs` installs them")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(DOCS), str(tmp_path / "html")]
    done = subprocess.run([*command, "-d", str(tmp_path / "trees")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
