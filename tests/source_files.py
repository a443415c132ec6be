"""The package's files and their syntax trees: parsed where a test asks, as collecting tests needs none of them."""

import ast
import functools
from pathlib import Path

import trainwright

__all__ = ["FILES", "ROOT", "calls", "tree"]

ROOT = Path(trainwright.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


@functools.cache
def tree(path):
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def calls(path):
    """Return (dotted name, call) of each call in a file."""
    return [(ast.unparse(node.func), node) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
