"""Formats numbers, times and a user's text for a reader: few decimals, escaped for HTML."""

import html
import json
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

__all__ = ["DASH", "aligned", "count", "date", "duration", "embedded_json", "escape", "number", "shown", "time_unit"]

DASH = "\N{EN DASH}"
"""Stands where there is no value."""

_LONGEST = 60  # characters of one value in a table or on an axis


def escape(text: object, longest: int | None = None) -> str:
    """Return text for HTML, and for figures, whose texts are HTML too; cut after `longest` characters."""
    plain = str(text)
    if longest is not None and len(plain) > longest:
        plain = plain[: longest - 1] + "…"
    return html.escape(plain, quote=True)


def embedded_json(value: object) -> str:
    """Return JSON that may stand inside a script element: nothing in it ends the element or starts a comment."""
    # `<` and `&` would end or change the script element around the text.
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with `digits` significant digits: 0.08123, 12,340, 1.2e-05; a dash for None and NaN."""
    if value is None or math.isnan(value):
        return DASH
    if math.isinf(value):
        return "∞" if value > 0 else _typeset_minus("-∞")
    if value == int(value) and abs(value) < 1e7:
        return _typeset_minus(f"{int(value):,}")
    # Outside of four decades below 1 and seven above, an exponent reads better than zeros.
    size = math.floor(math.log10(abs(value)))
    if not -4 <= size < 7:
        return _typeset_minus(f"{value:.{max(digits - 2, 1)}e}")
    return _typeset_minus(f"{value:,.{max(digits - 1 - size, 0)}f}")


def aligned(values: Sequence[float | None]) -> list[str]:
    """Return the numbers of a column with equally many decimals, or all with exponents if they span 4 decades."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    sizes = [math.floor(math.log10(abs(value))) for value in known if value]
    if all(value == int(value) for value in known) or not sizes:
        return [number(value) for value in values]
    if max(sizes) - min(sizes) >= 3 or max(sizes) > 6 or max(sizes) < -3:
        form = ".1e"
    else:
        # As many decimals as the largest value needs for four digits, fewer where they would all be 0.
        places = max(3 - max(sizes), 0)
        while places and all(round(value, places) == round(value, places - 1) for value in known):
            places -= 1
        form = f",.{places}f"
    return [
        number(value) if value is None or not math.isfinite(value) else _typeset_minus(f"{value:{form}}")
        for value in values
    ]


def shown(value: Any) -> str:
    """Return a parameter's value for a reader, not yet escaped."""
    if isinstance(value, float):
        return _typeset_minus(f"{value:.3g}")
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(shown, value)) + ")"
    text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def count(amount: int, one: str, many: str = "") -> str:
    """Return "1 trial", "2 trials", "no trials"."""
    words = one if amount == 1 else many or f"{one}s"
    return f"{amount:,} {words}" if amount else f"no {words}"


def duration(seconds: float) -> str:
    """Return a time span in its two greatest units: 48 s, 3 min 12 s, 2 h 5 min, 3 d 4 h."""
    # Below ten seconds decimals matter, above them the next unit does.
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= 0.1 or not seconds else f"{seconds:.2g} s"
    whole = round(seconds)
    for size, name, small, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // small} {small_name}"
    return f"{whole} s"


def date(seconds: float) -> str:
    """Return a wall time as local date and time to the minute."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the unit in which a time axis of that length reads best, and its seconds."""
    for name, size, least in (("d", 86400.0, 2 * 86400), ("h", 3600.0, 2 * 3600), ("min", 60.0, 180)):
        if seconds > least:
            return name, size
    return "s", 1.0


def _typeset_minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")
