"""Parses and formats bytes as people write them: budgets such as 8 GiB or a fraction of a step, and sizes as text."""

import math
import re

from trainwright.errors import BudgetError

__all__ = ["distinct_sizes", "format_bytes", "read_budget", "read_size", "reserved_bytes", "size"]

_UNITS = {"": 1, "B": 1, **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", start=1)},
          **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)}}  # fmt: skip
_ALLOWED = "a size such as '8 GiB' or '500 MB', a whole number of bytes > 0, or a fraction in (0, 1]"
_SMALL, _SEGMENT = 2 * 2**20, 20 * 2**20
_BY_LOWER = {unit.lower(): size for unit, size in _UNITS.items()}


def read_budget(budget: object, full_bytes: int) -> int:
    """Return a budget in bytes; a float, or a string such as "0.5" or "50%", is a fraction of `full_bytes`."""
    if isinstance(budget, str):
        found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([A-Za-z]*|%)", budget.strip())
        if found is None or (found[2] != "%" and found[2].lower() not in _BY_LOWER):
            raise BudgetError(f"budget: got {budget!r}; allowed: {_ALLOWED}")
        number = float(found[1])
        if found[2] == "%":
            return _read_fraction(number / 100, full_bytes, budget)
        if not found[2] and "." in found[1]:
            return _read_fraction(number, full_bytes, budget)
        budget_bytes = int(number * _BY_LOWER[found[2].lower()])
    elif isinstance(budget, float):
        return _read_fraction(budget, full_bytes, budget)
    elif isinstance(budget, bool) or not isinstance(budget, int):
        raise BudgetError(f"budget: got {budget!r}; allowed: {_ALLOWED}")
    else:
        budget_bytes = budget
    if budget_bytes <= 0:
        raise BudgetError(f"budget: got {budget!r}; allowed: {_ALLOWED}")
    return budget_bytes


def read_size(wanted: object, what: str) -> int:
    """Return a size in bytes that is no share of anything; the error names `what` it is the size of."""
    try:
        found = read_budget(wanted, 0)
    except BudgetError:
        found = 0
    if found <= 0:
        raise BudgetError(f"{what}: got {wanted!r}; allowed: a size such as '16 GiB' or '500 MB', or whole bytes > 0")
    return found


def format_bytes(count: float) -> str:
    """Return bytes in binary units: 512 B, 1.43 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


def _read_fraction(value: float, full_bytes: int, given: object) -> int:
    if not math.isfinite(value) or not 0 < value <= 1:
        raise BudgetError(f"budget: got {given!r}; allowed: {_ALLOWED}")
    return math.floor(value * full_bytes)


def size(count: float, digits: int = 3) -> str:
    """Return bytes in decimal units: 12.3 kB, 211 MB, 76.08 GB."""
    if count >= 1e8:
        return f"{count / 1e9:.{digits - 1}f} GB"
    return f"{count / 1e6:.{digits}g} MB" if count >= 1e5 else f"{count / 1e3:.{digits}g} kB"


def distinct_sizes(more: float, less: float) -> tuple[str, str]:
    """Return two different sizes with as many digits as tell them apart."""
    digits = 3
    while (found := (size(more, digits), size(less, digits)))[0] == found[1] and digits < 15:
        digits += 1
    return found


def reserved_bytes(allocated: int) -> int:
    """Return what an allocator of 2 MiB or 20 MiB segments holds for so many bytes."""
    segment = _SMALL if allocated < _SEGMENT else _SEGMENT
    return -(-allocated // segment) * segment
