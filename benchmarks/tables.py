"""Fill the tables of README and docs from `benchmarks/results/*.json`, so that no number in them is typed by hand.

    python benchmarks/tables.py            # writes the tables
    python benchmarks/tables.py --check    # changes nothing, exits with 1 if a page differs

A page holds `<!-- benchmark:NAME -->` and `<!-- end -->`; between them goes the table of `results/NAME.json`. With
`<!-- benchmark:NAME columns="1-3,5" rows="PATTERN" -->` it is those columns, counted from 1, and the rows in which the
regular expression is found (in the cells joined by " | "); the line below the table says how many rows there are, and
names the machine, unless the page names the same in `<!-- machine: ... -->`.
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

_BLOCK = re.compile(
    r'(<!-- benchmark:(?P<name>[\w-]+)(?: columns="(?P<columns>[\d,-]+)")?(?: rows="(?P<rows>[^"\n]+)")? -->\n)'
    r"(?P<old>.*?)(?P<end><!-- end -->)",
    re.DOTALL,
)


def fill(text: str, results: Path) -> str:
    """Return the page with each block's table as its result file has it."""
    usual = re.search(r"<!-- machine: (.*) -->", text)

    def block(found: re.Match[str]) -> str:
        path = results / f"{found['name']}.json"
        if not path.exists():
            raise SystemExit(
                f"a page asks for the benchmark {found['name']!r}, but {path} does not exist; run it with --results"
            )
        result = json.loads(path.read_text())
        place = result["environment"]
        machine = f"{place['cpu']}, {place['cores']} cores, Python {place['python']}"
        source = f"revision {place['revision']}"
        if usual is None or usual[1] != machine:
            source = f"{machine}, {source}"
        header, rows = result["table"]["header"], result["table"]["rows"]
        chosen = [row for row in rows if re.search(found["rows"] or "", " | ".join(map(str, row)))]
        if len(chosen) < len(rows):
            source += f"; {len(chosen)} of {len(rows)} rows of results/{path.name}"
        columns = _columns(found["columns"], len(header))
        cut = [[row[i] for i in columns] for row in (header, *chosen)]
        return f"{found[1]}{table(cut[0], cut[1:])}\n\n*{source}.*\n{found['end']}"

    return _BLOCK.sub(block, text)


def _columns(text: str | None, count: int) -> list[int]:
    """Return the indices that a text such as "1-3,5" names; all of them without a text."""
    if text is None:
        return list(range(count))
    indices: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        indices += range(int(first) - 1, int(last or first))
    return indices


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
