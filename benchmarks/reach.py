"""Which functions of the package a coverage report saw run, by package.

    make reach

runs the demo, the examples and the guides under coverage, and prints this table. A function counts if any line of its
body ran. Compiled kernels are not seen.
"""

import ast
import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "trainwright"


def main() -> None:
    """Print the table of the report whose path is the argument."""
    (path,) = sys.argv[1:]
    report = json.loads(Path(path).read_text(encoding="utf-8"))
    executed = {(ROOT / name).resolve(): set(entry["executed_lines"]) for name, entry in report["files"].items()}
    reached: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for file in sorted(SOURCE.rglob("*.py")):
        package = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        lines = executed.get(file, set())
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_abstract(node):
                functions[package] += 1
                reached[package] += any(_runs(statement, lines) for statement in node.body)
    for package in sorted(functions, key=lambda name: reached[name] / functions[name]):
        share = reached[package] / functions[package]
        print(f"{package:20} {reached[package]:5} of {functions[package]:5}  {share:5.0%}")
    print(f"{'all':20} {reached.total():5} of {functions.total():5}  {reached.total() / functions.total():5.0%}")


def _runs(statement: ast.stmt, lines: set[int]) -> bool:
    return any(line in lines for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))


def _is_abstract(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the body is a docstring or dots alone, as in protocols."""
    return all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in node.body)


if __name__ == "__main__":
    main()
