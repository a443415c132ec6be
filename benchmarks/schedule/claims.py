"""What is said of promotion rules, checked on recorded curves: stragglers, workers, order, and discarding early.

- stragglers: ASHA against synchronous halving where runs are 1 + |z| times as long, z of spread s, and die at rate p a
  unit of time: configurations trained to the end, and when the first was (after the simulations of Li et al., arXiv
  1810.05934; eta 4, r 1, R 256, n 256, 25 workers, 2,000 units, settings that we could not verify). Halving starts
  another bracket where a worker would idle ("overlapping"), or waits until one has ended ("alone").
- target: the same on TaskSet (Metz et al., arXiv 2002.11887), time to a loss that one in a hundred ends with.
- workers: time to that loss with 1 to 512 slots, until the trials are used up.
- order, order_algoperf, order_surrogate: best loss at fixed shares of one budget of time, rule against rule.
- pasha: epochs that PASHA and ASHA use, and how the trial that they choose ends.
- discarding: hypervolume of (epochs used, best final loss), two settings a rule, one stream of 100 trials a seed
  (after Egele et al., arXiv 2404.04111).

Study number i plays table i modulo the number of tables; all rules see the same seeds, so comparisons are paired;
intervals are 95 % bootstraps over studies. Regret is a loss's distance from the best end of the table, the median
end's being 1.

    python benchmarks/schedule/claims.py --data FOLDER --json --results FILE [--parts order,pasha] [--cells FILE]
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.schedule.paired import Kept, Part, Rows, Setting, average, entered, holds, ratio, shown
from benchmarks.schedule.replays import Curves, Watched, algoperf, lcbench, study, taskset
from benchmarks.schedule.straggling import stragglers, target

from trainwright.pareto import hypervolume
from trainwright.schedule import (
    ASHA,
    PASHA,
    FixedEpochs,
    Hyperband,
    IEpoch,
    Median,
    Patience,
    PromotionRule,
    SuccessiveHalving,
)

__all__ = ["main"]

SLOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SHARES = (0.125, 0.25, 0.5, 1.0)
PAIRS = (("halving", "asha-promotion"), ("halving", "asha-stopping"))


def workers(setting: Setting, tables: list[Curves]) -> Part:
    """Time to a target loss with ever more slots."""
    times: dict[int, list[float]] = {}
    reached: list[float] = []

    def one(slots: int, seed: int) -> Sequence[float]:
        curves = tables[seed % len(tables)]
        rule = Watched(ASHA(max_epochs=curves.length, min_epochs=1), each_epoch=True)
        watched, run = study(rule, curves.task, slots=slots, trials=curves.rows, seed=seed)
        at = watched.reached(curves.aim)
        return min(at, run.makespan_seconds), math.isfinite(at), run.makespan_seconds

    makespans: dict[int, list[float]] = {}
    for seed in range(setting.seeds):
        for slots in SLOTS:
            at, came, whole = setting.kept.of(f"workers {slots} {seed}", partial(one, slots, seed))
            times.setdefault(slots, []).append(at)
            makespans.setdefault(slots, []).append(whole)
            reached.append(came)
        progress(f"workers: {seed + 1} of {setting.seeds}")
    summary: dict[str, float] = {"workers_reached": float(np.mean(reached))}
    rows: Rows = []
    for slots in SLOTS[1:]:
        value = ratio(np.array(times[1]), np.array(times[slots]))
        everything = ratio(np.array(makespans[1]), np.array(makespans[slots]))
        summary |= entered(f"speedup_{slots}", value) | entered(f"speedup_all_trials_{slots}", everything)
        linear = holds(value, 0.8 * slots)
        measured = f"{shown(value)} to the target, {shown(everything)} for all trials"
        rows.append([f"{slots} slots are {slots} times as fast (0.8 of it counts)", measured, linear])
    return summary, rows


def contestants(curves: Curves, slots: int, lengths: float) -> dict[str, tuple[PromotionRule, int]]:
    """Return the rules that play for the same time, and of how many trials."""
    length, rows = curves.length, curves.rows
    budget = int(slots * lengths * length)
    short = min(rows, budget // 2)
    best = min(short, max(1, (budget - short) // length))
    rules: dict[str, PromotionRule] = {
        "random": FixedEpochs(length),
        "halving": SuccessiveHalving(n=min(81, rows), max_epochs=length, min_epochs=1),
        "hyperband-async": Hyperband(max_epochs=length, min_epochs=1, kind="promotion"),
        "asha-stopping": ASHA(max_epochs=length, min_epochs=1),
        "asha-promotion": ASHA(max_epochs=length, min_epochs=1, kind="promotion"),
        "pasha": PASHA(max_epochs=length, min_epochs=1),
        "median": Median(max_epochs=length, min_epochs=1),
        "patience": Patience(max_epochs=length),
        "i-epoch": IEpoch(epochs=1, top_k=best, max_epochs=length),
    }
    return {name: (rule, short if name == "i-epoch" else rows) for name, rule in rules.items()}


def _regrets(
    rule: PromotionRule, curves: Curves, until: float, *, slots: int, trials: int, seed: int
) -> Sequence[float]:
    watched, _ = study(Watched(rule, until=until, each_epoch=True), curves.task, slots=slots, trials=trials, seed=seed)
    return [curves.regret(watched.best(share * until)) for share in SHARES]


def order(setting: Setting, tables: list[Curves], *, part: str) -> Part:
    """Rank the rules at shares of one budget of time."""
    slots, names, losses = 4, [], []
    for seed in range(setting.seeds):
        curves = tables[seed % len(tables)]
        lengths = min(6.0, curves.rows / (3 * slots))
        rules = contestants(curves, slots, lengths)
        names = list(rules)
        until = lengths * curves.seconds
        made = {
            name: partial(_regrets, rule, curves, until, slots=slots, trials=trials, seed=seed)
            for name, (rule, trials) in rules.items()
        }
        losses.append([setting.kept.of(f"{part} {name} {seed}", make) for name, make in made.items()])
        progress(f"{part}: {seed + 1} of {setting.seeds}")
    regrets = np.array(losses)  # (studies, rules, shares)
    below = (regrets[:, :, None] > regrets[:, None]).sum(axis=2)
    ranks = 1.0 + below + ((regrets[:, :, None] == regrets[:, None]).sum(axis=2) - 1) / 2
    summary: dict[str, float] = {f"{part}_tables": len(tables), f"{part}_studies": setting.seeds}
    rows: Rows = []
    for place in np.argsort(ranks[:, :, -1].mean(axis=0)):
        name = names[place]
        last = average(ranks[:, place, -1])
        for at, share in enumerate(SHARES):
            key = f"{part}_{name.replace('-', '_')}_{share:g}"
            summary[f"{key}_rank"] = float(ranks[:, place, at].mean())
            summary[f"{key}_regret"] = float(regrets[:, place, at].mean())
        way = ", ".join(f"{value:.1f}" for value in ranks[:, place, :-1].mean(axis=0))
        measured = f"rank {way}, {shown(last)}; regret {regrets[:, place, -1].mean():.3f}"
        rows.append([f"{name}, at 1/8, 1/4, 1/2 and all of the time", measured, ""])
    for waits, free in PAIRS:
        first, second = names.index(waits), names.index(free)
        for at, text in ((1, "1/4"), (3, "all")):
            better = average(regrets[:, first, at] - regrets[:, second, at])
            summary |= entered(f"{part}_{free}_before_{waits}_{SHARES[at]:g}", better)
            measured = f"{shown(better, '+.3f')} of regret"
            rows.append([f"{free} is better than {waits} at {text} of the time", measured, holds(better, 0.0)])
    return summary, rows


def _chosen(rule: PromotionRule, curves: Curves, seed: int) -> Sequence[float]:
    watched, _ = study(rule, curves.task, slots=8, trials=min(256, curves.rows), seed=seed)
    latest = watched.latest()
    chosen = min(latest, key=lambda trial: (-latest[trial][0], latest[trial][1], trial))
    end = curves.task.learning_curves(seed).of(chosen, None).losses(curves.length)[0]
    return sum(epoch for epoch, _ in latest.values()), curves.regret(end)


def pasha(setting: Setting, tables: list[Curves]) -> Part:
    """Compare epochs used, and how the chosen trial ends when trained to the end."""
    found = []
    for seed in range(setting.seeds):
        curves = tables[seed % len(tables)]
        rules: dict[str, PromotionRule] = {
            "asha": ASHA(max_epochs=curves.length, min_epochs=1, kind="promotion"),
            "pasha": PASHA(max_epochs=curves.length, min_epochs=1),
        }
        made = {name: partial(_chosen, rule, curves, seed) for name, rule in rules.items()}
        found.append([setting.kept.of(f"pasha {name} {seed}", make) for name, make in made.items()])
        progress(f"pasha: {seed + 1} of {setting.seeds}")
    values = np.array(found)
    fewer = ratio(values[:, 0, 0], values[:, 1, 0])
    worse = average(values[:, 1, 1] - values[:, 0, 1])
    equal = "yes" if worse[2] <= 0.02 else "no" if worse[1] > 0.0 else "open"
    rows = [
        ["PASHA uses a third of ASHA's epochs", f"{shown(fewer)} times as few", holds(fewer, 3.0)],
        ["its choice ends as well (within 0.02)", f"{shown(worse, '+.3f')} of regret", equal],
    ]
    return entered("asha_over_pasha_epochs", fewer) | entered("pasha_minus_asha_regret", worse), rows


def _discarded(rule: PromotionRule, curves: Curves, count: int, seed: int) -> Sequence[float]:
    watched, _ = study(Watched(rule, each_epoch=True), curves.task, slots=1, trials=count, seed=seed)
    latest = watched.latest().values()
    ends = [loss for epoch, loss in latest if epoch >= curves.length]
    return sum(epoch for epoch, _ in latest), curves.regret(min(ends, default=math.inf))


def discarding(setting: Setting, tables: list[Curves]) -> Part:
    """Hypervolume of epochs used and best final loss, for rules that discard early."""
    trials, volumes, kinds = 100, [], []
    for seed in range(setting.seeds):
        curves = tables[seed % len(tables)]
        length, count = curves.length, min(trials, curves.rows)
        rules: dict[str, list[PromotionRule]] = {
            "i-epoch": [IEpoch(epochs=i, top_k=min(3, count), max_epochs=length) for i in (1, min(5, length))],
            "halving": [SuccessiveHalving(n=count, max_epochs=length, min_epochs=1, eta=eta) for eta in (2, 4)],
            "asha": [ASHA(max_epochs=length, min_epochs=1, eta=eta, kind="promotion") for eta in (2, 4)],
            "random": [FixedEpochs(length)],
        }
        kinds = list(rules)

        row = []
        for name, settings in rules.items():
            made = [partial(_discarded, rule, curves, count, seed) for rule in settings]
            points = np.array([setting.kept.of(f"discarding {name} {i} {seed}", make) for i, make in enumerate(made)])
            each = points[:, 0] / count
            plain = np.stack([each / length, points[:, 1]], axis=1)
            logs = np.stack([np.log(np.maximum(each, 1.0)) / math.log(length), points[:, 1]], axis=1)
            unit = np.ones(2)
            row.append(
                [
                    hypervolume(plain, unit),
                    hypervolume(logs, unit),
                    points[:, 0].min() / (count * length),
                    points[:, 1].min(),
                ]
            )
        volumes.append(row)
        progress(f"discarding: {seed + 1} of {setting.seeds}")
    values = np.array(volumes)
    summary: dict[str, float] = {}
    rows: Rows = []
    for place in np.argsort(-values[:, :, 1].mean(axis=0)):
        volume, in_logs = (average(values[:, place, k]) for k in (0, 1))
        name, means = kinds[place], values[:, place].mean(axis=0)
        summary |= entered(f"hypervolume_{name.replace('-', '_')}", volume)
        summary |= entered(f"hypervolume_log_epochs_{name.replace('-', '_')}", in_logs)
        text = f"{shown(volume)}, {shown(in_logs)} in log epochs; epochs from {means[2]:.3f}, regret {means[3]:.3f}"
        rows.append([f"hypervolume of {name}", text, ""])
    for name in ("halving", "asha"):
        gap = average(values[:, 0, 1] - values[:, kinds.index(name), 1])
        summary |= entered(f"i_epoch_minus_{name}_hypervolume_log_epochs", gap)
        measured = f"{shown(gap, '+.3f')} in log epochs"
        rows.append([f"i-epoch has a larger hypervolume than {name}", measured, holds(gap, 0.0)])
    return summary, rows


PARTS: dict[str, tuple[Callable[[Setting, list[Curves]], Part], Callable[[Path], Iterator[Curves]] | None, str]] = {
    "workers": (workers, taskset, "taskset/*.npz"),
    "pasha": (pasha, taskset, "taskset/*.npz"),
    "order": (partial(order, part="order"), taskset, "taskset/*.npz"),
    "discarding": (discarding, taskset, "taskset/*.npz"),
    "order_algoperf": (partial(order, part="order_algoperf"), algoperf, "algoperf/*.parquet, and polars"),
    "order_surrogate": (
        partial(order, part="order_surrogate"),
        lcbench,
        "yahpo_lcbench/model.onnx, and onnxruntime",
    ),
    "target": (target, taskset, "taskset/*.npz"),
    "stragglers": (stragglers, None, ""),
}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Check the parts that are asked for; those of an earlier result in the same file stay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="with folders taskset, algoperf, yahpo_lcbench")
    parser.add_argument("--parts", default=",".join(PARTS), help="several with commas")
    parser.add_argument("--seeds", type=int, default=30, help="studies of each comparison")
    parser.add_argument("--units", type=float, default=2000.0, help="of time, in the part on stragglers")
    parser.add_argument(
        "--cells", type=Path, metavar="FILE", help="keep finished studies here; delete it when the code changes"
    )
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    setting = Setting(seeds=arguments.seeds, units=arguments.units, kept=Kept(arguments.cells))
    kept: dict[str, Any] = {}
    if arguments.results is not None and arguments.results.exists():
        kept = json.loads(arguments.results.read_text())["parts"]
    for name in arguments.parts.split(","):
        if name not in PARTS:
            parser.error(f"--parts: got {name!r}; allowed: {', '.join(PARTS)}")
        check, read, wanted = PARTS[name]
        curves = [] if read is None else list(read(arguments.data))
        if read is not None and not curves:
            kept[name] = {"skipped": f"left out: it needs {wanted}", "summary": {}, "rows": []}
            continue
        summary, rows = check(setting, curves)
        kept[name] = {
            "seeds": arguments.seeds,
            "summary": summary,
            "rows": [[name, claim, measured, str(arguments.seeds), answer] for claim, measured, answer in rows],
        }
    parts = [kept[name] for name in PARTS if name in kept]
    header = ["part", "claim or measure", "measured (95 % interval)", "studies", "holds"]
    lines = [row for part in parts for row in part["rows"]]
    result: dict[str, Any] = {
        "benchmark": "schedule_claims",
        "environment": environment(),
        "summary": {
            **{key: value for part in parts for key, value in part["summary"].items()},
            "studies": min((part["seeds"] for part in parts if "seeds" in part), default=0),
            "skipped": {name: kept[name]["skipped"] for name in PARTS if "skipped" in kept.get(name, {})},
        },
        "parts": kept,
        "table": {"header": header, "rows": lines},
    }
    print(table(header, lines))
    finish(result, arguments)
    return result


if __name__ == "__main__":
    main()
