"""Compares the journals of two runs of a proof, line by line, and names the first difference."""

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["STEPS", "ProofRun", "Unlike", "first_difference", "idle_generators", "max_difference", "read_lines"]

STEPS = ("counted", "step")
"""The events at which an optimizer step was counted."""

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True, slots=True)
class JournalLine:
    """What a rank saw at an event: "step" (`manager.step()`), "counted" (in `trial.prepare`), "saved" or "restored".

    Digests of the batches and losses since the last step, and of all state.
    """

    rank: int
    step: int
    event: str
    batches: list[str]
    losses: list[str]
    state: dict[str, str]


@dataclass(frozen=True, slots=True)
class ProofRun:
    """The journal of a run, all ranks, and the file with the parameters that it ended with."""

    lines: list[JournalLine]
    end: Path

    def of(self, *events: str) -> list[JournalLine]:
        """Return the lines of these events."""
        return [line for line in self.lines if line.event in events]


@dataclass(frozen=True, slots=True)
class Unlike:
    """The first difference: at which step, in which items, what may be behind it, after so many equal digests."""

    step: int
    items: list[str]
    suspect: str
    compared: int


def read_lines(journal: Path, ranks: int) -> list[JournalLine]:
    """Return the journals of all ranks, one after the other."""
    paths = [Path(f"{journal}.{rank}") for rank in range(ranks)]
    return [
        JournalLine(rank=rank, **json.loads(line))
        for rank, path in enumerate(paths)
        if path.exists()
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def idle_generators(lines: list[JournalLine]) -> frozenset[str]:
    """Return the generators that nobody draws from: where they stand may differ between two runs that nobody seeded."""
    # The first rank stands for all: each seeds its generators in the same way.
    own = [line for line in lines if line.rank == 0]
    first, last = own[0].state, own[-1].state
    return frozenset(name for name in first if name.startswith("rng") and first[name] == last.get(name))


def first_difference(
    whole: list[JournalLine], other: list[JournalLine], idle: frozenset[str] = frozenset()
) -> Unlike | None:
    """Return the first step at which a run is not as the uninterrupted one was, and what differs there.

    Of several lines of an event at one step the last counts; what was restored is compared with what was saved.
    """
    expected = {(line.rank, line.step, line.event): line for line in whole}
    compared = 0
    # A stable order: ranks one after the other.
    for line in sorted(other, key=lambda line: line.step):
        restored = line.event == "restored"
        was = expected.get((line.rank, line.step, "saved" if restored else line.event))
        if was is None:
            return Unlike(line.step, ["steps"], "there it was over: epochs or samples are repeated", compared)
        compared += len(line.state)
        # what was handed out before the save is no business of the run that resumed
        samples = [] if restored or line.batches == was.batches else ["batches"]
        losses = [] if restored or line.losses == was.losses else ["losses"]
        names = [name for name in was.state if line.state.get(name) != was.state[name] and name not in idle]
        names += [name for name in line.state if name not in was.state]
        # The first one's buffers are kept: DDP hands them out with the next batch.
        if line.rank and restored:
            names = [name for name in names if not name.endswith(_BUFFERS)]
        found = [*samples, *losses, *names]
        if found:
            return Unlike(line.step, found, _suspect(restored, found), compared)
    return None


def _suspect(restored: bool, found: list[str]) -> str:
    if restored:
        return f"{found[0]} is not restored as it was saved"
    if found[0] == "batches":
        return "the samples: the loader's position or order is not kept; give the Manager a tw.train.Loader as loader="
    if found[0] == "losses":
        return "the forward pass on equal samples: random draws, buffers or other state that the Manager was not given"
    if found[0] == "report":
        return "the evaluation: what it draws or keeps that the checkpoint does not hold"
    return "the update after an equal loss: an optimizer, schedule, scaler or average that the Manager was not given"


def max_difference(one: ProofRun, other: ProofRun) -> float:
    """Return the largest difference between parameters at the end of two runs."""
    import torch

    a, b = (torch.load(run.end, weights_only=True, map_location="cpu") for run in (one, other))
    pairs = ((a[item][name].double(), b[item][name].double()) for item in a for name in a[item])
    return max((float((x - y).abs().max()) for x, y in pairs if x.numel()), default=0.0)
