"""The five walks of the structure page are short and name objects that exist; the glossary names modules that exist."""

import ast
import re

import pytest

from source_files import FILES, ROOT, tree

PAGE = (ROOT.parents[1] / "docs" / "explanation" / "structure.md").read_text(encoding="utf-8")
WALKS = dict(re.findall(r"^### (.+?)\n(.+?)(?=^##)", PAGE.split("## Five walks")[1], re.MULTILINE | re.DOTALL))


def defined():
    """Return the names of all classes, functions and fields of the package."""
    names = set()
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
    return names


def test_there_are_five_walks():
    assert list(WALKS) == ["A trial", "A checkpoint", "A plan", "An ensemble", "A request"]


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_is_short_and_names_what_exists(walk):
    assert sum(bool(line) for line in WALKS[walk].splitlines()) < 15
    known = defined()
    quoted = re.findall(r"`([^`]+)`", WALKS[walk])
    assert quoted
    wanted = [name for text in quoted for name in re.findall(r"[A-Za-z_]+", text) if name not in {"tw", "trial"}]
    assert [name for name in wanted if name not in known] == []


def test_the_glossary_names_modules_that_exist():
    text = (ROOT.parents[1] / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    modules = re.findall(r"\| `([\w/.]+)` \|$", text, re.MULTILINE)
    assert len(modules) > 40
    assert [name for name in modules if not (ROOT / name).exists()] == []
