"""Ensemble selection on libraries that our own search trained: what it gains on test rows, at which cost, how fast.

    python benchmarks/ensemble/run.py --data DIR --kept DIR --sets digits,satellite --seeds 5 --json

All methods choose on the same selection rows of the same library; test rows judge. `--kept` holds the libraries: what
lies there is not trained again. `--data` is the root below which Debian's packages lie (see `datasets.py`).
`hypervolume` is that of a method's ensembles in (test cross-entropy, seconds per row), as a share of the box up to
(loss of the class shares, seconds of the 8 dearest members); means over data sets and seeds. `ratio` is our
hypervolume over another's on the same library: median, how often it is above 1, and the two-sided sign test's p. The
speed is of 50 greedy steps on 300 models x 10,000 rows x 100 classes, in processor seconds (the median of 9 runs),
after the true class's columns are read.
"""

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._report import add_arguments, environment, finish, mean_and_interval, progress, table
from benchmarks.ensemble.datasets import CLASSES, Missing
from benchmarks.ensemble.peers import METHODS
from benchmarks.ensemble.training import MODELS, library_of, settings

__all__ = ["main"]

Array = npt.NDArray[Any]
OURS = ("ours, best", "ours, fallback")


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("/"), help="root below which Debian's packages lie")
    parser.add_argument("--kept", type=Path, default=Path("runs/ensemble"), help="where trained libraries are kept")
    parser.add_argument("--sets", default="digits", help=f"data sets, of {','.join(CLASSES)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", type=int, default=MODELS, help="models with a result in each library")
    add_arguments(parser)
    arguments = parser.parse_args(argv)

    seconds, peak = _speed()  # first, while nothing else has been allocated
    progress(f"50 greedy steps: {seconds:.3f} s of processor time, peak {peak / 1e6:.0f} MB resident")
    rows: list[dict[str, Any]] = []
    missing = []
    for name in arguments.sets.split(","):
        for seed in range(arguments.seeds):
            try:
                library = library_of(name, seed, root=arguments.data, kept=arguments.kept, models=arguments.models)
            except Missing as error:
                missing.append(str(error))
                progress(f"skipped: {error}")
                break
            rows += [{"set": name, "seed": seed, **row} for row in _compared(library)]
    summary = {"greedy_seconds": seconds, "greedy_peak_bytes": peak, **_summary(rows)}
    header, lines = _lines(rows)
    print(table(header, lines))
    print(f"worse than the single best by more than one standard error: {summary['worse_than_single_best']}")
    result = {
        "benchmark": "ensemble",
        "summary": summary,
        "settings": {"sets": arguments.sets, "seeds": arguments.seeds, **settings(arguments.models)},
        "missing": missing,
        "rows": rows,
        "table": {"header": header, "rows": lines},
        "environment": environment(),
    }
    finish(result, arguments)
    return result


def _speed() -> tuple[float, int]:
    """Processor seconds (median of 9) of 50 greedy steps, and the peak of resident memory."""
    from trainwright.ensemble import BudgetedGreedy
    from trainwright.ensemble.metrics import METRICS
    from trainwright.ensemble.selection.candidates import Candidates, make_scorer

    draws = np.random.default_rng(0)
    true = draws.random((300, 10_000), dtype=np.float32)
    candidates = Candidates(trials=np.arange(300), targets=draws.integers(0, 100, 10_000), true=true)
    times = []
    for attempt in range(10):
        scorer = make_scorer(candidates, METRICS["cross_entropy"])
        start = time.process_time()
        BudgetedGreedy(max_additions=50).run(candidates, scorer)
        if attempt:  # the first one compiles
            times.append(time.process_time() - start)
    return statistics.median(times), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _compared(library: Any) -> list[dict[str, Any]]:
    """One row per method: the scores of its answer on test rows, and the hypervolume of its ensembles there."""
    import trainwright as tw
    from trainwright.ensemble.metrics import METRICS

    front = library.select(tw.BudgetedGreedy())
    metric = METRICS["cross_entropy"]
    chosen = {split: library.candidates(metric, split)[0] for split in ("selection", "test")}
    members = {member.trial: member for member in library.members}
    trials = chosen["selection"].trials.tolist()
    test = [_normal(members[trial].predictions("test")) for trial in trials]
    targets = chosen["test"].targets
    seconds = chosen["selection"].seconds

    def serialise_weights(picks: Sequence[int]) -> dict[int, float]:
        return {one: list(picks).count(one) / len(picks) for one in set(picks)}

    def of_trials(ensemble: Any) -> dict[int, float]:
        pairs = zip(ensemble.members, ensemble.weights, strict=True)
        return {trials.index(member.trial): weight for member, weight in pairs}

    answers: dict[str, tuple[list[dict[int, float]], dict[int, float]]] = {}
    for name, method in METHODS.items():
        found = [serialise_weights(picks) for picks in method(chosen["selection"].true, seconds)]
        answers[name] = found, found[-1]
    points = [of_trials(front.ensemble(point)) for point in front.points]
    for name, how in zip(OURS, ("best", "fallback"), strict=True):
        answers[name] = points, of_trials(front.pick(how))

    counts = np.bincount(targets) / len(targets)
    reference = np.array([-np.log(counts[targets]).mean(), np.sort(seconds)[-8:].sum()])
    alone = _row_losses(test, targets, answers["single best"][1])
    return [
        {
            "method": name,
            **_scored(
                test,
                targets,
                seconds=seconds,
                ensembles=ensembles,
                answer=answer,
                reference=reference,
                alone=alone,
            ),
        }
        for name, (ensembles, answer) in answers.items()
    ]


def _scored(
    test: list[Array],
    targets: Array,
    *,
    seconds: Array,
    ensembles: list[dict[int, float]],
    answer: dict[int, float],
    reference: Array,
    alone: Array,
) -> dict[str, Any]:
    from trainwright.ensemble.combine.calibration import score_probabilities
    from trainwright.pareto import hypervolume

    pooled = _pooled(test, answer)
    losses = _row_losses(test, targets, answer)
    behind = losses - alone
    error = float(behind.std(ddof=1) / np.sqrt(len(behind)))
    axes = np.array(
        [[_row_losses(test, targets, one).mean(), sum(seconds[member] for member in one)] for one in ensembles]
    )
    return {
        "accuracy": float((pooled.argmax(axis=1) == targets).mean()),
        "nll": float(losses.mean()),
        "ece": score_probabilities(pooled, targets)["ece"],
        "members": len(answer),
        "seconds_per_row": float(sum(seconds[member] for member in answer)),
        "hypervolume": hypervolume(axes, reference) / float(np.prod(reference)),
        "behind_single": float(behind.mean()),
        "standard_error": error,
    }


def _normal(kept: Array) -> Array:
    wide = kept.astype(np.float64)
    return np.asarray(wide / wide.sum(axis=1, keepdims=True))


def _pooled(test: list[Array], answer: dict[int, float]) -> Array:
    return np.asarray(sum(weight * test[one] for one, weight in answer.items()))


def _row_losses(test: list[Array], targets: Array, answer: dict[int, float]) -> Array:
    chance = sum(weight * test[one][np.arange(len(targets)), targets] for one, weight in answer.items())
    return np.asarray(-np.log(np.maximum(chance, 1e-7)))


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    methods = list(dict.fromkeys(row["method"] for row in rows))

    def mean(key: str, method: str) -> float:
        return statistics.mean(float(row[key]) for row in rows if row["method"] == method)

    return {
        "hypervolume": {method: mean("hypervolume", method) for method in methods},
        "test_nll": {method: mean("nll", method) for method in methods},
        "test_accuracy": {method: mean("accuracy", method) for method in methods},
        "test_ece": {method: mean("ece", method) for method in methods},
        "worse_than_single_best": {
            method: sum(row["behind_single"] > row["standard_error"] for row in rows if row["method"] == method)
            for method in OURS
            if method in methods
        },
        "ratio": {method: _ratio(rows, method) for method in methods if method not in OURS},
        "libraries": len({(row["set"], row["seed"]) for row in rows}),
    }


def _ratio(rows: list[dict[str, Any]], method: str) -> dict[str, float]:
    """Compare our front's hypervolume with another's, library by library."""
    from scipy.stats import binomtest

    def of(name: str) -> list[float]:
        return [float(row["hypervolume"]) for row in rows if row["method"] == name]

    ratios = [ours / other for ours, other in zip(of(OURS[0]), of(method), strict=True)]
    above, below = sum(one > 1 for one in ratios), sum(one < 1 for one in ratios)
    return {
        "median": statistics.median(ratios),
        "least": min(ratios),
        "greatest": max(ratios),
        "above": above,
        "below": below,
        "p": float(binomtest(above, above + below).pvalue) if above + below else 1.0,
    }


def _lines(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[object]]]:
    """One line a method: test cross-entropy per data set, and means over all libraries."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    header = ["method", *(f"{name}, nll" for name in sets), "accuracy", "ece", "members", "us per row", "hypervolume"]
    lines: list[list[object]] = []
    for method in dict.fromkeys(row["method"] for row in rows):
        some = [row for row in rows if row["method"] == method]
        mean = {key: statistics.mean(row[key] for row in some) for key in some[0] if key not in {"method", "set"}}
        losses = [mean_and_interval([row["nll"] for row in some if row["set"] == name]) for name in sets]
        lines.append(
            [
                method,
                *losses,
                f"{mean['accuracy']:.4f}",
                f"{mean['ece']:.4f}",
                f"{mean['members']:.1f}",
                f"{1e6 * mean['seconds_per_row']:.1f}",
                f"{mean['hypervolume']:.4f}",
            ]
        )
    return header, lines


if __name__ == "__main__":
    main()
