"""What the pages name is there: imports, attributes, keywords of calls, commands with their options.

Takes no longer than importing it all, so that it also watches the pages whose blocks run in `make test-all` alone.
"""

import ast
import dataclasses
import importlib
import inspect
import re
import shlex

import pytest
from blocks import ROOT, blocks_of
from test_code_blocks import TEXTS

import trainwright
from trainwright.cli.main import build_app

APP = build_app()


def scripts(text):
    """Yield the syntax trees of a page's blocks of Python."""
    for block in blocks_of(text):
        if block.kind == "python":
            yield ast.parse(block.body)


def called(node):
    """Return what a dotted name such as `tw.ASHA` stands for; None if it begins elsewhere."""
    words = ast.unparse(node).split(".")
    if words[0] not in {"tw", "trainwright"} or not all(map(str.isidentifier, words)):
        return None
    found = trainwright
    for word in words[1:]:
        found = getattr(found, word)
    return found


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_in_python(page):
    for tree in scripts(TEXTS[page]):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "trainwright":
                module = importlib.import_module(node.module)
                for name in node.names:
                    assert hasattr(module, name.name) or importlib.import_module(f"{node.module}.{name.name}")
            elif isinstance(node, ast.Call) and (function := called(node.func)) is not None:
                known = inspect.signature(function).parameters.values()
                if not any(each.kind is each.VAR_KEYWORD for each in known):
                    assert {word.arg for word in node.keywords if word.arg} <= {each.name for each in known}, (
                        node.lineno
                    )
            elif isinstance(node, ast.Attribute):
                called(node)


def commands(text):
    """Yield the words of each call of `trainwright` in a page's shell blocks, and the output that is shown."""
    for block in blocks_of(text):
        if block.kind == "console":
            for command, shown in re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block.body, re.MULTILINE):
                for part in re.findall(r"(?:^|[;&|] *)(trainwright [^;&|]*)", command.replace("\\\n", " ")):
                    yield shlex.split(part, comments=True), shown


def command_of(words):
    """Return the command that the words name, and the words after its name."""
    command, rest = APP, words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_in_commands(page):
    for words, _ in commands(TEXTS[page]):
        command, rest = command_of(words)
        assert not getattr(command, "commands", {}) or rest[:1] in (["--help"], []), words
        known = {"--help", "--"}.union(*(each.opts for each in command.params))
        own = rest[: rest.index("--")] if "--" in rest else rest
        assert {word.split("=")[0] for word in own if word.startswith("--")} <= known, words


def test_the_reference_shows_no_private_field():
    """What its lists name, `module: Name Name`, is called without a word that begins with an underscore."""
    seen = 0
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for module, names in re.findall(r"^(trainwright[\w.]*): ([\w ]+)$", page.read_text(), re.MULTILINE):
            for name in names.split():
                found = getattr(importlib.import_module(module), name)
                if dataclasses.is_dataclass(found):
                    seen += 1
                    assert not [word for word in inspect.signature(found).parameters if word.startswith("_")], name
    assert seen > 20
