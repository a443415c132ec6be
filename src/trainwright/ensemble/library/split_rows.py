"""Selection, calibration and test rows out of one split, where trials left no more than the rows of their validation.

The search has seen those rows: its best trials are best on them by luck too, so losses here stay too good, the test
rows' among them, and an optimism is a lower bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from trainwright.ensemble.library.member import Member, Split
from trainwright.ensemble.library.predictions import digest_of
from trainwright.ensemble.metrics import Array
from trainwright.randomness import rng

__all__ = ["SEEN", "split_rows"]

SEEN = "validation"  # the split's name
_TURNS = ("selection", "selection", "selection", "calibration", "test")  # 60 %, 20 %, 20 %


def split_rows(members: Sequence[Member], seed: int = 0) -> tuple[Member, ...]:
    """Return members that left nothing but "validation" with its rows divided too, as all others are given.

    Classes are in all parts in equal shares as far as their numbers allow. The rows drawn depend on the seed alone.
    """
    if any(set(member.splits) != {SEEN} for member in members):
        return tuple(members)
    first = members[0]
    targets = first.targets(SEEN)
    # The same seed for every member: all are divided alike, whatever trial they come from.
    order = rng(seed, "divided validation rows", 0).permutation(len(targets))
    if first.output == "classes":
        order = order[np.argsort(targets[order], kind="stable")]  # rows of a class go to the parts in turn
    parts: dict[str, Array] = {
        name: np.sort(np.concatenate([order[at :: len(_TURNS)] for at, turn in enumerate(_TURNS) if turn == name]))
        for name in dict.fromkeys(_TURNS)
    }
    parts = {name: rows for name, rows in parts.items() if len(rows)}
    ids = first.row_ids(SEEN)
    # New digests, since a part of the rows is another set of rows.
    digests = {
        name: digest_of(first.data, name, first.output, targets[rows], rows if ids is None else ids[rows])
        for name, rows in parts.items()
    }
    return tuple(replace(member, splits={**member.splits, **_cut_split(member, parts, digests)}) for member in members)


def _cut_split(member: Member, parts: Mapping[str, Array], digests: Mapping[str, str]) -> dict[str, Split]:
    """Return the parts of a member's validation rows as splits."""
    whole = member.splits[SEEN]
    return {
        name: replace(whole, rows=len(places), digest=digests[name], source=SEEN, source_rows=whole.rows, places=places)
        for name, places in parts.items()
    }
