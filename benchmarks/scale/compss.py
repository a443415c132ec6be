"""How busy the slots of the PyCOMPSs engine are with trials of unequal length, on the stand-in of the tests.

Trials sleep, epoch by epoch, up to `--longest` seconds (their lengths are uniform on logarithms over a decade), under
ASHA. "steady" is from the first moment at which every slot has begun a trial to the last start; "whole" is from the
opening of the engine to the last end, tail included, and "perfect" is what slots without any overhead would reach with
the same trials in the same order: the rest of the whole is the tail of trials that end after the queue is empty.

    python benchmarks/scale/compss.py --json [--slots 4,8,27] [--each 12] [--longest 8]
"""

import argparse
import heapq
import importlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "tests" / "integrations"))

from benchmarks._report import add_arguments, finish_table, progress

import trainwright as tw

__all__ = ["main", "train"]

EPOCHS = 9
HEADER = ("slots", "trials", "steady", "whole", "perfect", "whole / perfect")


def train(trial: tw.Trial) -> None:
    """Sleep for an epoch's share of the trial's seconds, and report."""
    for epoch in trial.epochs():
        time.sleep(trial.params["seconds"] / EPOCHS)
        trial.report(loss=trial.params["quality"] + 1 / epoch)


class Patches:
    """What the stand-in needs of pytest's monkeypatch."""

    def setitem(self, where: dict[str, Any], name: str, value: Any) -> None:
        """Set an item."""
        where[name] = value

    def delitem(self, where: dict[str, Any], name: str, *, raising: bool) -> None:
        """Delete an item, if it is there."""
        assert not raising
        where.pop(name, None)

    def setenv(self, name: str, value: str) -> None:
        """Leave the environment to the engine."""


def measure(slots: int, trials: int, longest: float) -> dict[str, float]:
    """Run a study, and return its utilisations."""
    space = tw.Space(seconds=tw.Float(longest / 10, longest, log=True), quality=tw.Float(0.0, 1.0))
    opened = time.time()
    with tempfile.TemporaryDirectory() as folder:
        study = tw.Study(space, "min loss", directory=folder, seed=0, searcher=tw.RandomSearcher())
        rule = tw.ASHA(max_epochs=EPOCHS, eta=3)
        study.run(train, trials=trials, scheduler=rule, engine=tw.PyCOMPSs(slots=slots), progress=False)
        leases = [(lease.ended_at or 0.0, trial.seconds) for trial in study.trials for lease in trial.leases.values()]
    runs = sorted((end - seconds, end) for end, seconds in leases)
    first, last = runs[slots - 1][0], runs[-1][0]
    steady = sum(max(0.0, min(end, last) - max(begin, first)) for begin, end in runs)
    busy, end = sum(end - begin for begin, end in runs), max(end for _, end in runs)
    free = [0.0] * slots
    for begin, until in runs:
        heapq.heappush(free, heapq.heappop(free) + until - begin)
    return {
        "steady": steady / (slots * (last - first)),
        "whole": busy / (slots * (end - opened)),
        "perfect": busy / (slots * max(free)),
    }


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", default="4,8,27", metavar="N,...")
    parser.add_argument("--each", type=int, default=12, help="trials a slot")
    parser.add_argument("--longest", type=float, default=8.0, help="seconds of the longest trial")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    importlib.import_module("fake_compss").install(Patches(), deferred=True)
    summary: dict[str, float] = {}
    rows = []
    for slots in map(int, arguments.slots.split(",")):
        found = measure(slots, slots * arguments.each, arguments.longest)
        summary |= {f"utilisation_{kind}_{slots}": value for kind, value in found.items()}
        shares = [*found.values(), found["whole"] / found["perfect"]]
        rows.append([str(slots), str(slots * arguments.each), *(f"{100 * share:.1f} %" for share in shares)])
        progress(" ".join(rows[-1]))
    return finish_table("scale_compss", arguments, HEADER, rows, summary)


if __name__ == "__main__":
    main()
