"""Fill the tables of README and docs from `benchmarks/results/*.json`, so that no number in them is typed by hand.

    python benchmarks/tables.py            # writes the tables
    python benchmarks/tables.py --check    # changes nothing, exits with 1 if a page differs

A page holds `<!-- benchmark:NAME -->` and `<!-- end -->`; between them goes the table of `results/NAME.json`.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._report import RESULTS, ROOT, table

__all__ = ["fill", "main"]

_BLOCK = re.compile(r"(<!-- benchmark:(?P<name>[\w-]+) -->\n)(?P<old>.*?)(<!-- end -->)", re.DOTALL)


def fill(text: str, results: Path) -> str:
    """Return the page with each block's table as its result file has it."""

    def block(found: re.Match[str]) -> str:
        path = results / f"{found['name']}.json"
        if not path.exists():
            raise SystemExit(
                f"a page asks for the benchmark {found['name']!r}, but {path} does not exist; run it with --results"
            )
        result = json.loads(path.read_text())
        place = result["environment"]
        source = f"{place['cpu']}, {place['cores']} cores, Python {place['python']}, revision {place['revision']}"
        return f"{found[1]}{table(result['table']['header'], result['table']['rows'])}\n\n*{source}.*\n{found[4]}"

    return _BLOCK.sub(block, text)


def main(argv: Sequence[str] | None = None) -> int:
    """Fill or check the pages; 1 if a page was to be changed and `--check` was given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 if a page differs")
    parser.add_argument("pages", nargs="*", type=Path, help="Markdown files (default: README.md and docs/)")
    arguments = parser.parse_args(argv)
    stale = 0
    for page in arguments.pages or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if not page.exists():
            continue
        before = page.read_text()
        after = fill(before, RESULTS)
        if after != before:
            stale += 1
            print(f"{page}: {'differs from its results' if arguments.check else 'filled'}")
            if not arguments.check:
                page.write_text(after)
    return int(bool(stale and arguments.check))


if __name__ == "__main__":
    sys.exit(main())
