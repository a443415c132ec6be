"""What a search space looks like on the wire between a benchmark and its peers; read by every peer's own Python."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Column", "Kind"]

Kind = Literal["float", "log_float", "int", "log_int", "ordinal", "choice"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One parameter: numbers travel as themselves, ordinals and choices as their position in `values`."""

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    values: tuple[Any, ...] = ()

    @property
    def numeric(self) -> bool:
        """Whether the parameter is a number between `low` and `high`."""
        return self.kind in {"float", "log_float", "int", "log_int"}

    def json(self) -> dict[str, Any]:
        """Give the column as plain data."""
        return asdict(self)

    @staticmethod
    def of(data: Sequence[dict[str, Any]]) -> "list[Column]":
        """Read columns back from plain data."""
        return [Column(**{**item, "values": tuple(item["values"])}) for item in data]
