"""Mutation score: the share of random small changes to the code that the fast tests notice.

    python benchmarks/mutation/run.py --packages ledger,schedule --mutants 20 --seed 0 --results mutants.json

Each mutant changes one place of a copy of the package (a comparison, a sign, a condition, a number, a returned value, a
statement left out), then the tests of that package run until the first failure: those that run the changed line first,
if none of them notices all. A mutant on which all pass survives, and is printed. Mutants are drawn from the seed,
without those that leave the compiled code as it is. Results are kept as they come: the same command continues.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, progress

ROOT = Path(__file__).resolve().parents[2]
TESTS = {
    "ledger": ("tests/ledger",),
    "schedule": ("tests/schedule",),
    "checkpoint": ("tests/checkpoint",),
    "search": ("tests/search",),
    "serve": ("tests/serve",),
    "space": ("tests/space",),
    "ensemble": ("tests/ensemble",),
}
_SECONDS = 600.0
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


def run_tests(tests: Sequence[str], mutant: Mutant | None = None, *, measure: Path | None = None) -> bool:
    """Run tests on a copy of the package, changed as `mutant` says; whether one fails, or they do not end.

    With `measure` the lines that each test runs are kept in that file.
    """
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("*.pyc"))
        if mutant is not None:
            (source / mutant.file.relative_to(ROOT / "src")).write_text(mutant.text, encoding="utf-8")
        # What is left open at the end is no test that fails.
        plugins = ["-p", "no:cacheprovider", "-p", "no:unraisableexception"]
        under: list[str] = []
        if measure is not None:
            settings = Path(folder) / "coveragerc"
            settings.write_text(f"[run]\ndynamic_context = test_function\ndata_file = {measure}\nsource = {source}\n")
            under = ["coverage", "run", f"--rcfile={settings}", "-m"]
        command = [sys.executable, "-m", *under, "pytest", "-q", "-x", *plugins, *tests]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True
        if done.returncode not in {0, 1, 2, 4}:
            raise SystemExit(f"mutation: pytest ended with status {done.returncode}: {done.stdout[-500:]}")
        if mutant is None and done.returncode != 0:
            raise SystemExit(f"mutation: the tests fail without any change: {done.stdout[-500:]}")
        return done.returncode != 0


def map_lines(tests: Sequence[str]) -> dict[tuple[str, int], list[str]]:
    """Return which tests run each line of a package, by its file's path below `src` and the line's number."""
    from coverage import CoverageData

    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        kept = Path(folder) / "lines"
        run_tests(tests, measure=kept)
        data = CoverageData(str(kept))
        data.read()
        found = {(file.rpartition("/src/")[2], line): names for file in data.measured_files()
                 for line, names in data.contexts_by_lineno(file).items()}  # fmt: skip
    paths = {path.stem: path for each in tests for path in (ROOT / each).rglob("test_*.py")}
    return {place: sorted({_node_of(name, paths) for name in names} - {""}) for place, names in found.items()}


def _node_of(context: str, paths: Mapping[str, Path]) -> str:
    """Return the test's name as pytest takes it, of a context such as `package.test_module.TestClass.test_function`."""
    words = context.split(".")
    module = next((place for place, word in enumerate(words) if word in paths), None)
    return "" if module is None else "::".join([str(paths[words[module]].relative_to(ROOT)), *words[module + 1 :]])


def is_killed(mutant: Mutant, tests: Sequence[str], lines: Mapping[tuple[str, int], list[str]]) -> bool:
    """Whether a test notices the change: first those that run its line in this process, then all."""
    nearest = lines.get((str(mutant.file.relative_to(ROOT / "src")), mutant.line), [])
    return (bool(nearest) and run_tests(nearest, mutant)) or run_tests(tests, mutant)


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
    for package in packages:
        lines: dict[tuple[str, int], list[str]] | None = None
        for mutant in draw_mutants(package, options.mutants, random.Random(f"{options.seed} {package}")):
            where = f"{mutant.file.relative_to(ROOT)}:{mutant.line}: {mutant.what}"
            if where in found:
                continue
            if lines is None:
                lines = map_lines(TESTS[package])
            noticed = is_killed(mutant, TESTS[package], lines)
            progress(f"{'killed  ' if noticed else 'SURVIVED'} {where}")
            found[where] = {"package": package, "noticed": noticed}
            result = summarise(found, options.seed)
            if options.results is not None:
                finish(result, argparse.Namespace(results=options.results, json=False))
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
