"""Which of our sources decide what a searcher proposes, so that a kept result is dropped when one of them changes."""

import ast
import hashlib
from pathlib import Path

__all__ = ["digest"]

_PARTS = ("randomness", "search", "space")  # what is followed; how results are kept decides nothing


def digest(package: Path, module: str) -> str:
    """Hash the code of a module, such as `search.bayes.forest_searcher`, and of what it imports, without docstrings."""
    found: set[str] = set()
    waiting = [module, "randomness"]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _imported(package, name)
    hashed = hashlib.blake2b(digest_size=8)
    for name in sorted(found):
        hashed.update(name.encode() + b"\0" + ast.dump(_code(package, name)).encode())
    return hashed.hexdigest()


def _imported(package: Path, module: str) -> list[str]:
    """Return the modules of our own that one names, in functions too; a name of a package is its module of that name.

    An index (`__init__`) imports everything and decides nothing, so it is passed over, but for that of `space`, whose
    names are not those of its modules.
    """
    names = []
    for node in ast.walk(_code(package, module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trainwright"):
            home = str(node.module).removeprefix("trainwright").lstrip(".")
            names += [home, *(f"{home}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.split(".")[0] in _PARTS and name != "search" and _exists(package, name)]


def _exists(package: Path, module: str) -> bool:
    return _path(package, module).exists()


def _path(package: Path, module: str) -> Path:
    folder = package.joinpath(*module.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def _code(package: Path, module: str) -> ast.Module:
    """Return the syntax tree without docstrings."""
    tree = ast.parse(_path(package, module).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree
