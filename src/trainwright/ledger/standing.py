"""Whether a running trial is running, silent or lost, for viewers that look once and write nothing."""

from collections.abc import Mapping

from trainwright.ledger.fold import State
from trainwright.ledger.protocol import Ledger
from trainwright.ledger.trials import Status

__all__ = ["SILENT", "state_counts", "under_way"]

SILENT = "silent"
"""The word for a trial whose holder gives no sign, though it may live."""

# Of a lease without a heartbeat, of which four are due in it.
_SHARE = 1 / 3


def under_way(ledger: Ledger, state: State) -> dict[int, str]:
    """Return the word for each trial that is recorded as running, by number: "running", "silent" or "lost".

    It is lost if its holder's process is gone: the next driver takes it over. It is silent if that process has sent no
    heartbeat for a third of a lease: after a whole lease other drivers take it over. The time since a
    heartbeat is by the clock of the ledger's storage; it is only shown, and drivers never decide by it.
    """
    held = {n: state.trials[n].holder for n in sorted(state.open) if state.trials[n].status is Status.RUNNING}
    silences = ledger.silences(sorted(set(held.values())))
    words = {}
    for holder, seconds in silences.items():
        writer = state.writers.get(holder)
        if writer is not None and writer.gone():
            words[holder] = str(Status.LOST)
        else:
            words[holder] = SILENT if seconds > ledger.lease_seconds * _SHARE else str(Status.RUNNING)
    return {number: words[holder] for number, holder in held.items()}


def state_counts(state: State, words: Mapping[int, str]) -> dict[str, int]:
    """Return how many trials are in each state, those under way by their words; "silent" only where one is."""
    counts = {str(status): count for status, count in state.counts.items()}
    for number, word in words.items():
        # It may have ended since the words were found.
        if state.trials[number].status is Status.RUNNING:
            counts[Status.RUNNING] -= 1
            counts[word] = counts.get(word, 0) + 1
    return counts
