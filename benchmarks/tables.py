"""Fill the tables of README and docs from `benchmarks/results/*.json`, so that no number in them is typed by hand.

    python benchmarks/tables.py            # writes the tables
    python benchmarks/tables.py --check    # changes nothing, exits with 1 if a page differs

A page holds `<!-- benchmark:NAME -->` and `<!-- end -->`; between them goes the table of `results/NAME.json`.

- `columns="1-3,5"` shows those columns, counted from 1.
- `rows="PATTERN"` shows the rows in which the regular expression is found (in the cells joined by " | ").
- `benchmark:ONE+TWO labels="First,Second"` puts columns of several results side by side, joined by the first.

The line below the table says how many rows there are, and names the revisions, and the machine unless the page names
it in `<!-- machine: ... -->`.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._report import RESULTS, ROOT, table

__all__ = ["fill", "main"]

_BLOCK = re.compile(
    r'(<!-- benchmark:(?P<names>[\w+-]+)(?: labels="(?P<labels>[^"\n]+)")?(?: columns="(?P<columns>[\d,-]+)")?'
    r'(?: rows="(?P<rows>[^"\n]+)")? -->\n)(?P<old>.*?)(?P<end><!-- end -->)',
    re.DOTALL,
)


def fill(text: str, results: Path) -> str:
    """Return the page with each block's table as its result files have it."""
    usual = re.search(r"<!-- machine: (.*) -->", text)

    def block(found: re.Match[str]) -> str:
        names = found["names"].split("+")
        read = [_read(results / f"{name}.json") for name in names]
        header, rows, total = _combine(
            [result["table"] for result in read],
            found["labels"].split(",") if found["labels"] else [],
            found["columns"],
            found["rows"] or "",
        )
        notes = [_source(result["environment"], usual) for result in read]
        source = "; ".join(dict.fromkeys(notes))
        if len(rows) < total:
            files = ", ".join(f"{name}.json" for name in names)
            source += f"; {len(rows)} of {total} rows of results/{files}"
        return f"{found[1]}{table(header, rows)}\n\n*{source}.*\n{found['end']}"

    return _BLOCK.sub(block, text)


def _read(path: Path) -> dict[str, Any]:
    """Return a kept result."""
    if not path.exists():
        raise SystemExit(
            f"a page asks for the benchmark {path.stem!r}, but {path} does not exist; run it with --results"
        )
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def _source(place: Mapping[str, Any], usual: re.Match[str] | None) -> str:
    """Return the revision of a result, with the machine if it is not the page's usual one."""
    machine = f"{place['cpu']}, {place['cores']} cores, Python {place['python']}"
    return (
        f"revision {place['revision']}" if usual and usual[1] == machine else f"{machine}, revision {place['revision']}"
    )


def _combine(
    parts: Sequence[Mapping[str, Any]], labels: Sequence[str], columns: str | None, pattern: str
) -> tuple[list[str], list[list[object]], int]:
    """Return the header and the chosen rows of one table made of several, and how many rows there were."""
    chosen = [[row for row in part["rows"] if re.search(pattern, " | ".join(map(str, row)))] for part in parts]
    indices = _columns(columns, len(parts[0]["header"]))
    if len(parts) == 1:
        only = parts[0]
        return [only["header"][i] for i in indices], [[row[i] for i in indices] for row in chosen[0]], len(only["rows"])
    if len(labels) != len(parts):
        raise SystemExit(f"{len(parts)} results need {len(parts)} labels, not {len(labels)}")
    # Rows are in the order of the first result that has them; a result without a row leaves its cells empty.
    names = list(dict.fromkeys(row[0] for rows in chosen for row in rows))
    header, rows = [parts[0]["header"][0]], [[name] for name in names]
    for label, part, found in zip(labels, parts, chosen, strict=True):
        header += [f"{label}, {part['header'][i]}" for i in indices]
        by_name = {row[0]: [row[i] for i in indices] for row in found}
        for row in rows:
            row.extend(by_name.get(row[0], [""] * len(indices)))
    return header, rows, len({row[0] for part in parts for row in part["rows"]})


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
