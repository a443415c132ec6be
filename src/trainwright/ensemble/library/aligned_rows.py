"""The rows that all members of a library have, found by row id where they left different ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from trainwright.ensemble.library.member import Member, Split
from trainwright.ensemble.library.predictions import digest_of
from trainwright.errors import EnsembleError, MixedSplitsError

__all__ = ["align_rows"]


def align_rows(members: Sequence[Member]) -> tuple[tuple[Member, ...], Mapping[str, int]]:
    """Return the members cut to the splits and rows that all have, and per split how many rows that dropped at most."""
    names = [name for name in members[0].splits if all(name in member.splits for member in members)]
    if not names:
        raise MixedSplitsError("splits: got no split that all members left; allowed: at least one in common")
    takes: list[dict[str, np.ndarray]] = [{} for _ in members]
    splits: dict[str, Split] = {}
    dropped: dict[str, int] = {}
    for name in names:
        if len({(member.output, member.splits[name].columns) for member in members}) > 1:
            raise MixedSplitsError(f"split {name!r}: got different columns; allowed: the same outputs in every trial")
        # Row ids are sorted on disk, so that the intersection and the positions are found by search.
        ids = [_require_ids(member, name) for member in members]
        common = ids[0]
        for other in ids[1:]:
            common = np.intersect1d(common, other, assume_unique=True)
        if not len(common):
            raise MixedSplitsError(f"split {name!r}: got no row id that all members have; allowed: at least one")
        # Where each common row lies in the member's own file.
        places = [np.searchsorted(one, common) for one in ids]
        targets = members[0].targets(name)[places[0]]
        for member, place in zip(members, places, strict=True):
            found = member.targets(name)[place]
            if not np.array_equal(found, targets):
                row = int(common[int(np.argmax((found != targets).reshape(len(common), -1).any(axis=1)))])
                raise MixedSplitsError(
                    f"split {name!r}: row {row} has one target in trial {members[0].trial} and another in trial "
                    f"{member.trial}; allowed: one target a row id"
                )
        # The digest of the common rows, equal for all members by construction.
        digest = digest_of(members[0].data, name, members[0].output, targets, common)
        splits[name] = replace(members[0].splits[name], rows=len(common), digest=digest)
        dropped[name] = max(len(one) for one in ids) - len(common)
        for take, place in zip(takes, places, strict=True):
            take[name] = place
    cut = tuple(
        replace(
            member,
            splits={name: replace(splits[name], storage=member.splits[name].storage) for name in names},
            takes=take,
            kept_rows={name: member.splits[name].rows for name in names},
        )
        for member, take in zip(members, takes, strict=True)
    )
    return cut, dropped


def _require_ids(member: Member, name: str) -> np.ndarray:
    ids = member.row_ids(name)
    if ids is None:
        raise EnsembleError(
            f"split {name!r}: trial {member.trial} left no row ids, so common rows cannot be found; allowed: rows= in "
            "every tw.ensemble.leave"
        )
    return ids
