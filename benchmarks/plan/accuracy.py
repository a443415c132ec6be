"""How far the oracle's seconds are off, each source judged by fits that have not seen what they predict.

Presets are calibrated by all other families of sources, one factor a constant for all machines. Across sources: a
source is predicted by this preset alone. Within a source: at most ten of its runs, of some models, are fitted by
`Oracle.fit` from this preset on, and its other models predicted. Beside both stand constant seconds and a constant
share of the peak (MFU).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from benchmarks.plan.sources import Source

from trainwright.cluster import Cluster
from trainwright.plan import Forecast, Oracle
from trainwright.plan.fit.fit_runs import constants_of, fit_clusters, fit_runs, with_constants
from trainwright.plan.fit.measured_run import MeasuredRun, constant_seconds, peak_seconds

__all__ = ["Score", "factors_without", "score_across", "score_within"]

MOST_FITTED = 10
_OF_THEIR_OWN = frozenset({"vTrain, one server", "ABCI, data parallel"})
"""Sources that calibrate no preset: hosts five times as slow as others', and steps that wait for their input."""
_MOST_SHARED = 12  # runs of a source that calibrate presets

SPLITS: Mapping[str, Callable[[MeasuredRun], bool]] = {
    "vTrain, one server": lambda run: run.model.startswith("1024"),
    "vTrain, many servers": lambda run: run.model.startswith("3072"),
    "Megatron-LM, 1.7B to 1T": lambda run: run.layout.devices <= 256,
    "torchtitan, H100": lambda run: run.model == "llama3-8b" and run.layout.degrees.context == 1,
    "ABCI, data parallel": lambda run: run.layout.devices <= 64,
}
"""Which runs of a source may be fitted; the others are predicted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Predictions of one source's runs beside the baselines; errors are means of |predicted / measured - 1|."""

    source: str
    fitted: int
    predicted: int
    error: float
    worst: float
    constant_seconds: float
    constant_mfu: float
    tau: float
    covered: float
    """Share of runs inside the 90 % interval."""
    factor: float
    """Mean of the interval's high end over the prediction."""
    at_bounds: tuple[str, ...] = ()
    rows: tuple[Mapping[str, object], ...] = ()


def score_within(source: Source, factors: Mapping[str, float]) -> Score | None:
    """Return the score of the models that a fit on at most ten runs of others has not seen; None without a split.

    The fit starts from the preset as `factors` of other families calibrated it.
    """
    if source.name not in SPLITS:
        return None
    some = [run for run in source.runs if SPLITS[source.name](run)]
    others = [run for run in source.runs if not SPLITS[source.name](run)]
    # Runs spread evenly over those that may be fitted.
    places = np.unique(np.linspace(0, len(some) - 1, min(MOST_FITTED, len(some))).round().astype(int))
    chosen = [some[place] for place in places]
    fitted = fit_runs(_calibrate_preset(source.cluster, factors), chosen)
    return _score(source.take(others), fitted.cluster, [source.take(chosen)], at_bounds=fitted.at_bounds)


def score_across(sources: Sequence[Source], factors: Mapping[str, Mapping[str, float]]) -> list[Score]:
    """Return the scores of all sources by presets that their own family has not calibrated."""
    return [
        _score(
            source,
            _calibrate_preset(source.cluster, factors[source.family]),
            [other for other in sources if other.family != source.family],
        )
        for source in sources
    ]


def factors_without(sources: Sequence[Source]) -> dict[str, dict[str, float]]:
    """Return by family the factors that presets take by all others, and by "" those by all, which presets ship with."""
    fitted = [source for source in sources if source.name not in _OF_THEIR_OWN]
    families = dict.fromkeys(["", *(source.family for source in fitted)])
    known = {family: _shared_factors([one for one in fitted if one.family != family]) for family in families}
    return {source.family: known[""] for source in sources} | known


def _shared_factors(sources: Sequence[Source]) -> dict[str, float]:
    """Return by constant the factor that presets take by these sources."""
    chosen = [(source.cluster, source.runs[:: math.ceil(len(source.runs) / _MOST_SHARED)]) for source in sources]
    fits = fit_clusters(chosen)
    return {name: each.value / each.start for fit in fits for name, each in fit.constants.items()}


def _calibrate_preset(cluster: Cluster, factors: Mapping[str, float]) -> Cluster:
    """Return a preset with its constants changed by these factors, within their ranges."""
    constants = constants_of(cluster)
    values = {
        each.name: min(each.high, max(each.low, each.start * factors[each.name]))
        for each in constants
        if each.name in factors
    }
    return with_constants(cluster, constants, values)


def _score(source: Source, cluster: Cluster, fitted: Sequence[Source], *, at_bounds: tuple[str, ...] = ()) -> Score:
    """Return how a cluster predicts the runs of a source, beside the baselines that the fitted runs give."""
    from scipy.stats import kendalltau

    runs = source.runs
    seen = [(each.cluster, run) for each in fitted for run in each.runs]
    # Each machine's runs reach a share of that machine's peak.
    mfu = math.exp(np.mean([math.log(peak_seconds(machine, run) / run.seconds) for machine, run in seen]))
    by_mfu = np.array([peak_seconds(source.cluster, run) for run in runs]) / mfu
    by_seconds = constant_seconds([run for _, run in seen], runs)
    forecasts = [_forecast(cluster, run) for run in runs]
    measured = np.array([run.seconds for run in runs])
    seconds = np.array([plan.seconds_per_iteration for plan in forecasts])
    low, high = np.array([plan.interval for plan in forecasts]).T
    # Speeds of different models are compared as samples do: work done a second.
    work = np.array([run.model_flops / run.layout.devices for run in runs])
    return Score(
        source=source.name,
        fitted=len(seen),
        predicted=len(runs),
        error=float(np.abs(seconds / measured - 1).mean()),
        worst=float(np.abs(seconds / measured - 1).max()),
        constant_seconds=float(np.abs(by_seconds / measured - 1).mean()),
        constant_mfu=float(np.abs(by_mfu / measured - 1).mean()),
        tau=float(kendalltau(work / seconds, work / measured).statistic) if len(runs) > 2 else math.nan,
        covered=float(((low <= measured) & (measured <= high)).mean()),
        factor=float((high / seconds).mean()),
        at_bounds=at_bounds,
        rows=tuple(
            {
                "model": run.model,
                **{name: degree for name, degree in asdict(run.layout.degrees).items() if degree > 1},
                "batch": run.layout.batch,
                "micro": run.layout.micro_batch,
                "measured": run.seconds,
                "predicted": plan.seconds_per_iteration,
            }
            for run, plan in zip(runs, forecasts, strict=True)
        ),
    )


def _forecast(cluster: Cluster, run: MeasuredRun) -> Forecast:
    return Oracle(cluster).forecast(run.profile, run.layout, optimizer=run.optimizer, context_by=run.context_by)
