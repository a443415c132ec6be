"""What many searches say: means with intervals, paired differences and ranks, over all problems and over each group."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from benchmarks.search.measures import average_ranks, bootstrap
from benchmarks.search.simulate import Problem
from numpy.typing import NDArray

__all__ = ["Regrets", "judge", "ranks", "rows"]

Array = NDArray[np.float64]
Regrets = dict[str, dict[str, Array]]  # by searcher, then by problem: [seeds, evaluations]

_LEAST = 1e-6  # regret below which logarithms do not tell searches apart
_MOST = 1.0  # the median's: a search that is worse has found nothing, and one that diverged must not decide a mean


def judge(regrets: Regrets, problems: Sequence[Problem], seeds: Mapping[str, int]) -> dict[str, Any]:
    """Return the numbers over all problems, and in `detail` those of each problem and family; no regret above 1."""
    regrets = {
        name: {key: np.minimum(values, _MOST) for key, values in found.items()} for name, found in regrets.items()
    }
    reference = "forest" if "forest" in regrets else next(iter(regrets))
    everything = [problem.name for problem in problems]
    groups = {problem.family: [p.name for p in problems if p.family == problem.family] for problem in problems}
    groups |= {name: [name] for name in everything}
    detail = {
        group: _numbers({name: {key: found[key] for key in keys} for name, found in regrets.items()}, seeds, reference)
        for group, keys in groups.items()
    }
    return {"summary": _numbers(regrets, seeds, reference), "detail": detail, "reference": reference}


def _numbers(regrets: Regrets, seeds: Mapping[str, int], reference: str) -> dict[str, Any]:
    measures = {
        "mean": {name: {key: values.mean(axis=1) for key, values in found.items()} for name, found in regrets.items()},
        "final": {name: {key: values[:, -1] for key, values in found.items()} for name, found in regrets.items()},
    }
    numbers: dict[str, Any] = {}
    for label, values in measures.items():
        intervals = {name: bootstrap(found) for name, found in values.items()}
        numbers[f"{label}_regret"] = {name: interval[0] for name, interval in intervals.items()}
        numbers[f"{label}_regret_interval"] = {name: interval[1:] for name, interval in intervals.items()}
        numbers["average_rank" if label == "mean" else "final_rank"] = ranks(values, seeds)
        # Paired: the same seeds and the same noise; positive means that the reference is better.
        numbers[f"{label}_difference_to_{reference}"] = {
            name: bootstrap({key: found[key][:few] - values[reference][key][:few] for key in found})
            for name, found in values.items()
            if name != reference
            for few in [min(seeds[name], seeds[reference])]
        }
    numbers["final_log10_regret"] = {
        name: float(np.mean([np.log10(np.maximum(values, _LEAST)).mean() for values in found.values()]))
        for name, found in measures["final"].items()
    }
    return numbers


def ranks(values: Regrets, seeds: Mapping[str, int]) -> dict[str, float]:
    """Methods with all seeds are ranked among themselves, one with fewer among all on its seeds."""
    full = max(seeds[name] for name in values)
    found_ranks: dict[str, float] = {}
    for name, found in values.items():
        field = [other for other in values if seeds[other] >= full or other == name]
        few = seeds[name]
        ranked = average_ranks([np.concatenate([values[other][key][:few] for key in found]) for other in field])
        found_ranks[name] = float(ranked[field.index(name)])
    return found_ranks


def rows(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table that is printed."""
    summary, reference = result["summary"], result["reference"]
    means, finals = (summary[f"{label}_difference_to_{reference}"] for label in ("mean", "final"))
    found = [
        [
            name,
            str(fact["seeds"]),
            f"{summary['mean_regret'][name]:.4f}",
            "{:.4f}..{:.4f}".format(*summary["mean_regret_interval"][name]),
            "{:+.4f} ({:+.4f}..{:+.4f})".format(*means[name]) if name in means else "",
            f"{summary['average_rank'][name]:.2f}",
            f"{summary['final_regret'][name]:.4f}",
            "{:.4f}..{:.4f}".format(*summary["final_regret_interval"][name]),
            "{:+.4f} ({:+.4f}..{:+.4f})".format(*finals[name]) if name in finals else "",
            f"{summary['final_rank'][name]:.2f}",
        ]
        for name, fact in result["searchers"].items()
    ]
    header = ["searcher", "seeds", "mean regret", "95 %", f"minus {reference}", "rank"]
    header += ["final regret", "95 %", f"minus {reference}", "rank"]
    return header, found
