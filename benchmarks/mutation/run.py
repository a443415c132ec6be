"""Mutation score: the share of random small changes to the code that the fast tests notice.

    python benchmarks/mutation/run.py --packages ledger,schedule --mutants 20 --seed 0 --results mutants.json

Each mutant changes one place of a copy of the package (a comparison, a sign, a condition, a number, a returned value, a
statement left out), then tests run until the first failure: four files of the package's tests at most, the module's
namesake, those that name most often what it offers, and those that bear the name of its folder. A mutant on which they
pass survives, and is printed; another file might have noticed it, so the share is a lower bound. Mutants are drawn from
the seed, without those that leave the compiled code as it is. Results are kept as they come: the same command
continues.
"""

import argparse
import ast
import compileall
import copy
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What the tests load beside the package: once, before the forks.
import numba  # noqa: F401
import pytest
import scipy.optimize
import scipy.stats  # noqa: F401
import torch  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, progress

ROOT = Path(__file__).resolve().parents[2]
TESTS = {
    "ledger": ("tests/ledger/test_*.py",),
    "schedule": ("tests/schedule/test_*.py", "tests/study/test_population.py"),
    "checkpoint": ("tests/checkpoint/test_*.py",),
    "search": ("tests/search/test_*.py",),
    "serve": ("tests/serve/test_*.py",),
    "space": ("tests/space/test_*.py",),
    "ensemble": ("tests/ensemble/test_*.py",),
}
_SECONDS = 600.0
_TEST_SECONDS = 120
_FILES = 4  # of tests for a mutant, at most
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change of one line of a file: the text of the whole file after it."""

    file: Path
    line: int
    what: str
    text: str


def list_changes(tree: ast.Module) -> Iterator[tuple[int, str, ast.AST, str, Any]]:
    """Yield (line, what, node, field, new value) for each small change of a module."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
            new = _COMPARISONS[type(node.ops[0])]
            yield line, f"{type(node.ops[0]).__name__} to {new.__name__}", node, "ops", [new(), *node.ops[1:]]
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            other = _OPERATORS[type(node.op)]
            yield line, f"{type(node.op).__name__} to {other.__name__}", node, "op", other()
        elif isinstance(node, ast.BoolOp):
            swapped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield line, f"{type(node.op).__name__} to {type(swapped).__name__}", node, "op", swapped
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            yield line, "condition turned", node, "test", ast.UnaryOp(ast.Not(), node.test)
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)
        ):
            yield line, f"{node.value} to {node.value + 1}", node, "value", node.value + 1
        elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
            yield line, "returns None", node, "value", ast.Constant(None)
        for field in ("body", "orelse", "finalbody"):
            # A lambda's body is one expression, not a list.
            value = getattr(node, field, None)
            statements: list[ast.stmt] = value if isinstance(value, list) else []
            for place, one in enumerate(statements):
                # A call alone in its line does something, or it would not be there; so does an addition in place.
                if isinstance(one, ast.AugAssign) or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Call)):
                    rest = [*statements[:place], ast.Pass(), *statements[place + 1 :]]
                    yield one.lineno, f"without {ast.unparse(one)[:60]}", node, field, rest


def draw_mutants(package: str, count: int, draws: random.Random) -> list[Mutant]:
    """Return `count` mutants of a package, from places drawn without replacement."""
    places = []
    for file in sorted((ROOT / "src" / "trainwright" / package).rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        # Annotations and docstrings are no code that runs; a new constant in __all__ is an error at once.
        places += [(file, number) for number, _ in enumerate(list_changes(tree))]
    found: list[Mutant] = []
    for file, number in draws.sample(places, min(len(places), 4 * count)):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        before = ast.unparse(tree)
        line, what, node, field, new = list(list_changes(tree))[number]
        setattr(node, field, copy.deepcopy(new) if isinstance(new, ast.AST) else new)
        text = ast.unparse(ast.fix_missing_locations(tree))
        if text != before and len(found) < count:
            found.append(Mutant(file, line, what, text))
    return found


def copy_source(folder: Path) -> Path:
    """Return a copy of `src` in a folder, compiled, of which mutants change one file at a time."""
    source = Path(shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.pyc")))
    compileall.compile_dir(source, quiet=2)
    return source


def is_noticed(mutant: Mutant, tests: Sequence[str], source: Path) -> bool | None:
    """Run tests on a copy of the package, changed as a mutant says; whether one fails, or they do not end.

    None if the test that fails does so without the change, too.
    """
    failing = source.parent / "failing"
    failing.unlink(missing_ok=True)
    changed = source / mutant.file.relative_to(ROOT / "src")
    compiled = Path(importlib.util.cache_from_source(changed))
    compiled.unlink(missing_ok=True)
    changed.write_text(mutant.text, encoding="utf-8")
    try:
        status = _fork_tests(tests, source, failing)
    finally:
        compiled.unlink(missing_ok=True)
        shutil.copy2(mutant.file, changed)
    if status == 0:
        return False
    # Where none has failed, they were not loaded, or took too long.
    again = failing.read_text(encoding="utf-8").splitlines()[:1] if failing.exists() else tests
    return True if _fork_tests(again, source, failing) == 0 else None


class _Failing:
    """A plug-in of pytest that notes what fails, tests and files that cannot be loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(report.nodeid + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(report.nodeid + "\n")


def _fork_tests(tests: Sequence[str], source: Path, failing: Path) -> int:
    """Run pytest in a fork of this process, which has what all tests load but not the package; return its status."""
    # What is left open at the end is no test that fails.
    options = ["-q", "-x", f"--timeout={_TEST_SECONDS}", "-p", "no:cacheprovider", "-p", "no:unraisableexception"]
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(ROOT)
        os.environ |= {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(source))
        silence = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(silence, handle)
        try:
            status = int(pytest.main([*options, *tests], plugins=[_Failing(failing)]))
        except BaseException:  # noqa: BLE001 -- whatever a mutant does is noticed
            status = 1
        os._exit(status)
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return abs(os.waitstatus_to_exitcode(status))
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 1


def choose_tests(package: str, file: Path) -> list[str]:
    """Return files of tests: the module's namesake, those that name most what it offers, its folder's; else all."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)} | {file.stem}
    files = sorted(path for each in TESTS[package] for path in ROOT.glob(each))
    found = []
    for path in files:
        words = re.findall(r"\w+", path.read_text(encoding="utf-8"))
        count = sum(word in names for word in words)
        if count or f"_{file.parent.name}" in path.stem:
            found.append((path.stem != f"test_{file.stem}", -count, str(path.relative_to(ROOT))))
    return [path for *_, path in sorted(found)[:_FILES]] or [str(path.relative_to(ROOT)) for path in files]


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Draw mutants, run the tests on each, and print the share that was noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", default="ledger,schedule,checkpoint,search,serve", help="of trainwright")
    parser.add_argument("--mutants", type=int, default=20, help="for each package")
    parser.add_argument("--seed", type=int, default=0)
    add_arguments(parser)
    options = parser.parse_args(argv)
    packages = options.packages.split(",")
    if unknown := sorted(set(packages) - set(TESTS)):
        parser.error(f"--packages: got {unknown[0]!r}; allowed: {', '.join(TESTS)}")
    kept = json.loads(options.results.read_text()) if options.results is not None and options.results.exists() else {}
    # By package and place: whether it was noticed, and the verdict that somebody has written beside a survivor.
    found: dict[str, dict[str, Any]] = kept.get("mutants", {}) if kept.get("seed") == options.seed else {}
    result: dict[str, Any] = {}
    source = copy_source(Path(tempfile.mkdtemp(prefix="mutant-")))
    for package in packages:
        for mutant in draw_mutants(package, options.mutants, random.Random(f"{options.seed} {package}")):
            where = f"{mutant.file.relative_to(ROOT)}:{mutant.line}: {mutant.what}"
            if where in found:
                continue
            noticed = is_noticed(mutant, choose_tests(package, mutant.file), source)
            if noticed is None:
                progress(f"not judged, a test fails without the change, too: {where}")
                continue
            progress(f"{'killed  ' if noticed else 'SURVIVED'} {where}")
            found[where] = {"package": package, "noticed": noticed}
            result = summarise(found, options.seed)
            if options.results is not None:
                finish(result, argparse.Namespace(results=options.results, json=False))
    shutil.rmtree(source.parent)
    result = summarise(found, options.seed)
    for row in result["table"]["rows"]:
        print("{}: {} of {} mutants are noticed, {}".format(*row))
    finish(result, options)
    return result


def summarise(found: Mapping[str, Mapping[str, Any]], seed: int) -> dict[str, Any]:
    """Return the counts by package; survivors marked `equivalent` change nothing that is seen, and do not count."""
    rows: list[list[Any]] = []
    summary: dict[str, Any] = {}
    for package in dict.fromkeys(each["package"] for each in found.values()):
        those = [each for each in found.values() if each["package"] == package]
        equivalent = sum("equivalent" in each for each in those)
        killed, all_of = sum(each["noticed"] for each in those), len(those) - equivalent
        rows.append([package, killed, all_of, f"{100 * killed / max(1, all_of):.0f} %", equivalent])
        summary |= {f"{package}_mutants": all_of, f"{package}_killed": killed / max(1, all_of)}
    return {
        "benchmark": "mutation", "seed": seed, "summary": summary, "mutants": found,
        "table": {"header": ["package", "noticed", "of mutants", "share", "equivalent, not counted"], "rows": rows},
        "environment": environment(),
    }  # fmt: skip


if __name__ == "__main__":
    main()
