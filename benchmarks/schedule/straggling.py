"""ASHA against synchronous halving where runs straggle and die, after the simulations of arXiv 1810.05934."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from benchmarks._report import progress
from benchmarks.schedule.paired import Part, Rows, Setting, entered, growth, holds, ratio, shown
from benchmarks.schedule.replays import Curves, Watched, study

from trainwright.engine.simulated.task import Parametric
from trainwright.schedule import ASHA, PromotionRule, SuccessiveHalving

__all__ = ["stragglers", "target"]

SPREADS = (0.0, 0.25, 0.5, 1.0)
DROPS = (0.0, 0.001, 0.01)
HALVINGS = ("halving-alone", "halving-overlapping")
KINDS = ("asha-stopping", "asha-promotion")


def halver(name: str, length: int, members: int) -> tuple[PromotionRule, int]:
    """Return a rule of the part on stragglers, and the size of brackets that wait for each other."""
    if name in HALVINGS:
        rule = SuccessiveHalving(n=members, max_epochs=length, min_epochs=1, eta=4)
        return rule, members if name == "halving-alone" else 0
    return ASHA(max_epochs=length, min_epochs=1, eta=4, kind="stopping" if name == "asha-stopping" else "promotion"), 0


def leads(found: dict[tuple[str, float, float], np.ndarray], what: str, *, less: bool) -> Part:
    """Say whether ASHA's lead over halving grows with stragglers and with drops; `less` if less is better."""
    summary: dict[str, float] = {}
    rows: Rows = []
    ends = (("stragglers", (SPREADS[-1], 0.0), "s = 1"), ("drops", (0.0, DROPS[-1]), f"p = {DROPS[-1]:g}"))
    for kind in KINDS:
        for halving in HALVINGS:
            over, under = (halving, kind) if less else (kind, halving)
            plain = found[over, 0.0, 0.0], found[under, 0.0, 0.0]
            name = f"{what}_lead_{kind}_{halving}"
            summary |= entered(name, ratio(*plain))
            for cause, at, text in ends:
                disturbed = found[over, *at], found[under, *at]
                grows = growth(plain, disturbed)
                summary |= entered(f"{name}_{cause}", ratio(*disturbed)) | entered(f"{name}_growth_{cause}", grows)
                measured = f"{shown(ratio(*plain))} without, {shown(ratio(*disturbed))} with {text}"
                rows.append([f"{what}: lead of {kind} over {halving} grows with {cause}", measured, holds(grows, 1.0)])
    return summary, rows


def stragglers(setting: Setting, tables: list[Curves]) -> Part:  # noqa: ARG001 -- as all parts
    """Count configurations at the full length, and find when the first was there."""
    length, workers = 256, 25
    task = Parametric(epoch_seconds=1.0, speed_jitter=0.0)

    def one(name: str, spread: float, drop: float, seed: int) -> Sequence[float]:
        rule, bracket = halver(name, length, 256)
        watched, _ = study(
            Watched(rule, until=setting.units, bracket=bracket),
            task,
            slots=workers,
            trials=10**6,
            seed=seed,
            stragglers=spread,
            drops_per_second=drop,
        )
        full = [at for at, _, epoch, _ in watched.reports if epoch >= length and at <= setting.units]
        return len(full), min(full, default=setting.units)

    found = _grid(setting, f"stragglers {setting.units:g}", [(s, p) for s in SPREADS for p in DROPS], one)
    counts = {key: values[:, 0] for key, values in found.items()}
    firsts = {key: values[:, 1] for key, values in found.items()}
    summary, rows = leads(counts, "full", less=False)
    more, others = leads(firsts, "first_full", less=True)
    for spread in SPREADS:
        for drop in DROPS:
            means = [counts[name, spread, drop].mean() for name in (*HALVINGS, *KINDS)]
            times = [firsts[name, spread, drop].mean() for name in (*HALVINGS, *KINDS)]
            for name, mean, time in zip((*HALVINGS, *KINDS), means, times, strict=True):
                at = f"{name.replace('-', '_')}_s{spread:g}_p{drop:g}"
                summary |= {f"full_{at}": float(mean), f"first_full_{at}": float(time)}
            measured = f"{' / '.join(f'{m:.1f}' for m in means)}; first at {' / '.join(f'{t:.0f}' for t in times)}"
            rows.append([f"at R, s = {spread:g}, p = {drop:g}: {', '.join((*HALVINGS, *KINDS))}", measured, ""])
    return summary | more, rows + others


def target(setting: Setting, tables: list[Curves]) -> Part:
    """Time to a target loss on TaskSet, with stragglers and drops."""

    def one(name: str, spread: float, drop: float, seed: int) -> Sequence[float]:
        curves = tables[seed % len(tables)]
        rule, bracket = halver(name, curves.length, min(256, curves.rows))
        watched, run = study(
            Watched(rule, each_epoch=True, bracket=bracket),
            curves.task,
            slots=25,
            trials=curves.rows,
            seed=seed,
            stragglers=spread,
            drops_per_second=drop * curves.length / curves.seconds,
        )
        reached = watched.reached(curves.aim)
        return min(reached, run.makespan_seconds), math.isfinite(reached)

    corners = [(0.0, 0.0), (SPREADS[-1], 0.0), (0.0, DROPS[-1])]
    found = _grid(setting, "target", corners, one)
    summary, rows = leads({key: values[:, 0] for key, values in found.items()}, "target", less=True)
    for name in (*HALVINGS, *KINDS):
        share = float(np.mean([found[name, *at][:, 1] for at in corners]))
        summary[f"target_reached_{name.replace('-', '_')}"] = share
    return summary, rows


def _grid(
    setting: Setting,
    part: str,
    places: Sequence[tuple[float, float]],
    one: Callable[[str, float, float, int], Sequence[float]],
) -> dict[tuple[str, float, float], np.ndarray]:
    found: dict[tuple[str, float, float], list[list[float]]] = {}
    for seed in range(setting.seeds):
        for spread, drop in places:
            for name in (*HALVINGS, *KINDS):
                key = f"{part} {name} {spread:g} {drop:g} {seed}"
                values = setting.kept.of(key, partial(one, name, spread, drop, seed))
                found.setdefault((name, spread, drop), []).append(values)
        progress(f"{part}: {seed + 1} of {setting.seeds}")
    return {key: np.array(values) for key, values in found.items()}
