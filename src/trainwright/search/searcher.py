"""The protocol of searchers, and what all of them need: a label on a proposal, and a new row that is no duplicate."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import SpaceExhausted
from trainwright.randomness import rng
from trainwright.search.view import SearchView
from trainwright.space.configuration import Configuration

__all__ = ["Learner", "Searcher", "draw_new", "propose", "propose_default"]

_DRAWS = 8  # single draws before a finite space is listed and the untried rest is drawn from
_LISTABLE = 1_000_000


@runtime_checkable
class Searcher(Protocol):
    """Who proposes: a frozen dataclass of settings without clock, I/O or state of its own."""

    def ask(self, view: SearchView, numbers: Sequence[int]) -> list[Configuration]:
        """Return one legal configuration for each trial number: a function of (settings, view, numbers) only.

        No proposal repeats another, a pending one or a tried one, save where a continuous space leaves no other.
        Raises SpaceExhausted when every configuration of a finite space has been tried.
        """
        ...


@runtime_checkable
class Learner(Searcher, Protocol):
    """A searcher that can do ahead, while trials run, what a proposal would have to do first."""

    def learn(self, view: SearchView) -> None:
        """Learn new results into `view.memo`; no proposal changes by it."""
        ...


def propose(view: SearchView, row: NDArray[np.float64], number: int, **origin: Any) -> Configuration:
    """Return the configuration of a legal row with its trial number and with what led to it."""
    labels: Mapping[str, Any] = origin
    return replace(view.space.configuration(row), number=number, origin=labels)


def propose_default(view: SearchView, number: int, taken: set[bytes], **origin: Any) -> Configuration | None:
    """Return the configuration with which trial `number` opens a study: the default for trial 0.

    None for others, if an active parameter has no default, or if it was tried before.
    """
    found = view.space.default() if number == 0 else None
    if found is None:
        return None
    key = view.space.row_keys(view.space.encode(found.params)[None, :])[0]
    if key in view.tried or key in taken:
        return None
    taken.add(key)
    return replace(found, number=number, origin=dict(origin))  # exactly what was given: a row may round its last bit


def draw_new(view: SearchView, number: int, taken: set[bytes], purpose: str) -> NDArray[np.float64]:
    """Return a legal random row for trial `number` that is neither tried nor in `taken`, and add its key to `taken`."""
    space = view.space
    # In most spaces the first draw is new, and no list of what was tried is walked.
    for draw in range(_DRAWS):
        row = space.sample(rng(view.seed, purpose, number, draw), 1)
        key = space.row_keys(row)[0]
        if key not in view.tried and key not in taken:
            taken.add(key)
            found: NDArray[np.float64] = row[0]
            return found
    # Eight single draws were all tried: take from a large sample, or from the list of a finite space.
    if space.size is None or space.size > _LISTABLE:
        # A small part of a large space may still be crowded (priors, requirements): look wider once.
        rows = space.sample(rng(view.seed, purpose, number, _DRAWS), 1000)
        keys = space.row_keys(rows)
    else:
        rows, keys = _listed(view)
    rest = [i for i, key in enumerate(keys) if key not in view.tried and key not in taken]
    if not rest:
        raise SpaceExhausted(
            f"all {len(view.tried)} configurations found in this space have been tried; nothing new is left"
        )
    pick = rest[int(rng(view.seed, purpose, number, _DRAWS + 1).integers(len(rest)))]
    taken.add(keys[pick])
    picked: NDArray[np.float64] = rows[pick]
    return picked


def _listed(view: SearchView) -> tuple[NDArray[np.float64], list[bytes]]:
    listed = view.memo.get("listed")
    if not isinstance(listed, tuple):
        rows = view.space.enumerate()
        listed = rows, view.space.row_keys(rows)
        view.memo["listed"] = listed
    return listed
