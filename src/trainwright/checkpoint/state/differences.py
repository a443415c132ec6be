"""Compares the environment of a restored run with the saved one: each difference with its effect on the result."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from trainwright.errors import CheckpointMismatchError

__all__ = ["Difference", "Effect", "Mode", "settle_differences"]

Mode = Literal["exact", "best_effort"]
"""How a checkpoint is restored: as it was or not at all, or as well as it can be."""


class Effect(StrEnum):
    """What a difference does to the run, gravest first."""

    STATE = "goes on from other values"
    SAMPLES = "sees other samples"
    CODE = "runs other code"
    DRAWS = "draws other random numbers"
    ROUNDING = "may round differently"


_MOST_LISTED = 10
_GRAVITY = {effect: number for number, effect in enumerate(Effect)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One thing that is not as it was saved.

    `item` names it ("torch", "flags.threads", "optimizer.state.fc.weight"); `saved` and `now` are plain values, None
    for what is not there.
    """

    item: str
    saved: Any
    now: Any
    effect: Effect

    def __str__(self) -> str:
        return f"{self.item} was {_show_value(self.saved)} and is {_show_value(self.now)} ({self.effect})"


def settle_differences(differences: Iterable[Difference], *, mode: Mode, what: str) -> tuple[Difference, ...]:
    """Return the differences, gravest first; in exact mode raise `CheckpointMismatchError` with ten of them.

    `what` opens the error's sentence, such as the path of the checkpoint.
    """
    # The gravest first, since the sentence names only ten.
    found = tuple(sorted(differences, key=lambda difference: _GRAVITY[difference.effect]))
    if found and mode == "exact":
        listed = "; ".join(str(difference) for difference in found[:_MOST_LISTED])
        listed += f"; and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else ""
        raise CheckpointMismatchError(
            f"{what} cannot be restored exactly: {listed}; restore the rest with restore(mode='best_effort')"
        )
    return found


def _show_value(value: Any) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
