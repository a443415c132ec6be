"""Are the probabilities of Extrapolate right: the stated chance of ending no better than the best, against frequency.

Curves: the TaskSet recurrent text classifiers (Metz et al., arXiv 2002.11887; 51 points of validation loss), read from
`--data`. Trials of a task finish one after another; each is judged at three rungs by what is finished by then, and runs
on, so that the truth is known. Targets: mean gap over ten bins at most 0.05, wrong stops at most 15 % of stops.

    python benchmarks/schedule/calibration.py --data FOLDER [--trials 60] [--json]
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from trainwright.randomness import rng
from trainwright.schedule import Ended, Extrapolate, Reported, Stop, TrialView, View

RULE = Extrapolate(max_epochs=51, min_epochs=5)
WARM = 10  # trials of a task before the first verdict that counts


def judged(losses: np.ndarray, seed: int) -> list[tuple[int, float, bool, bool, float]]:
    """Return rung, stated probability, whether it came true, whether the trial was stopped, and milliseconds."""
    index, best, found = RULE.empty(), np.inf, []
    for number, curve in enumerate(losses.tolist()):
        for epoch, loss in enumerate(curve, start=1):
            index = RULE.fold(index, Reported(trial=number, epoch=epoch, losses=(loss,)))
            if epoch not in RULE.rungs or number < WARM:
                continue
            trial = TrialView(number=number, epoch=epoch, losses=(loss,), best_loss=min(curve[:epoch]))
            began = time.process_time()
            verdict = RULE.on_report(index, View(remaining=0, seed=seed), trial)
            spent = 1e3 * (time.process_time() - began)
            if verdict.reason is not None and verdict.reason.threshold == RULE.p and verdict.reason.value is not None:
                found.append((epoch, verdict.reason.value, curve[-1] >= best, isinstance(verdict, Stop), spent))
        best = min(best, curve[-1])
        index = RULE.fold(index, Ended(trial=number, failed=False))
    return found


def main() -> None:
    """Judge, print the bins, and end with one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the tables *.npz")
    parser.add_argument("--trials", type=int, default=60, help="of each task, drawn at random")
    parser.add_argument("--json", action="store_true", help="print the last line only")
    given = parser.parse_args()
    found = []
    for task, path in enumerate(sorted(given.data.glob("*.npz"))):
        losses = np.load(path)["valid_loss"].astype(float)
        chosen = rng(0, "calibration", task).permutation(len(losses))[: given.trials]
        found += judged(np.where(np.isfinite(losses), losses, np.inf)[chosen], task)
    stated, true, stopped, spent = (np.array([row[k] for row in found]) for k in (1, 2, 3, 4))
    place = np.minimum((stated * 10).astype(int), 9)
    bins = [
        {"stated": stated[place == k].mean(), "frequency": true[place == k].mean(), "count": int((place == k).sum())}
        for k in range(10)
        if (place == k).any()
    ]
    if not given.json:
        for row in bins:
            print("stated {stated:.3f}  frequency {frequency:.3f}  verdicts {count}".format(**row))
    wrong = int((stopped & ~true).sum())
    summary = {
        "verdicts": len(found),
        "calibration_error": float(sum(abs(b["stated"] - b["frequency"]) * b["count"] for b in bins) / len(found)),
        "stops": int(stopped.sum()),
        "wrong_stops_share": wrong / max(1, int(stopped.sum())),
        "verdict_ms_median": float(np.median(spent)),
    }
    print(json.dumps({"benchmark": "schedule/calibration", "bins": bins, "summary": summary}))


if __name__ == "__main__":
    main()
