"""Times and sizes as a person types and reads them, and tables for a terminal."""

import re
from collections.abc import Mapping, Sequence

from trainwright.errors import InputError

__all__ = ["print_rows", "print_table", "seconds", "shorten", "shorten_list", "size"]

_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(option: str, text: str) -> float:
    """Return the seconds that "90", "90s", "15m", "1.5h" or "2d" mean; `option` is for the error's sentence."""
    found = re.fullmatch(r"(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise InputError(f"{option}: got {text!r}; allowed: a time such as 90, 90s, 15m, 1.5h or 2d")
    return float(found[1]) * _UNITS[found[2]]


def size(count: float) -> str:
    """Return a number of bytes in decimal units: 999 B, 12.3 kB, 210.7 MB."""
    # Decimal units, as the vendors of disks and networks use them.
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.95:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def print_rows(rows: Sequence[Mapping[str, object]], *, left: int = 1) -> None:
    """Print rows that are cells by the names of their columns, as `print_table` does; no rows print nothing."""
    if rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows], left=left)


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1) -> None:
    """Print columns, the first `left` ones to the left, the others to the right, under their names."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(header))]
    for row in cells:
        # Numbers to the right, so that their digits stand below each other.
        padded = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(padded).rstrip())


def shorten_list(numbers: Sequence[int]) -> str:
    """Return rising numbers such as "0-3,6"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in found)


def shorten(seconds: float) -> str:
    """Return seconds in three digits."""
    return "0" if seconds < 1e-9 else f"{seconds:.3g}"
