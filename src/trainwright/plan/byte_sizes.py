"""Sizes as a person reads them, with as many digits as what they are compared with needs."""

__all__ = ["distinct_sizes", "size"]


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
