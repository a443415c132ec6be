"""Accuracy on the ABCI runs: one set of constants fitted on at most 64 devices, every run predicted, ParaDL beside.

Accuracy is 1 - |T - median| / median with the median of a run's epochs after the first. Constants belong to the
machine and its software, none to a model: of a model only its seconds on one device are known (the smaller of what the
layer table gives and what the run on one device took, which holds its input). Fitted on the data-parallel runs and on
the hybrids of ResNet-50; those of VGG16, AlexNet and CosmoFlow ran with CUDA managed memory beyond what a device holds
and are scored apart.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

import numpy as np
from benchmarks.plan.abci import Network, Run, paradl_seconds
from benchmarks.plan.coverage import Coverage, coverage
from benchmarks.plan.fit import Fit, FitConstant, Predict, leave_out
from benchmarks.plan.fit_iteration import Iteration, Machine, Terms, iteration_terms
from benchmarks.plan.fit_plan import iteration_of

from trainwright.cluster import Cluster, Device, NetworkLevel
from trainwright.model.layer import Block
from trainwright.model.profile import Profile
from trainwright.plan import Degrees, Oracle
from trainwright.randomness import rng

__all__ = ["MOST_DEVICES", "Scores", "data_parallel_mean", "machine", "score"]

MOST_DEVICES = 64  # that constants are fitted on
MISLABELLED = "resnet50 data+spatial"
ELEMENT = 4  # bytes
NODE = 4  # devices
IMAGE_BYTES = 3 * 226 * 226 * ELEMENT
SAMPLE_BYTES = {"cosmoflow": 4 * 512**3 * ELEMENT, "cosmoflow_256": 4 * 256**3 * ELEMENT}

CONSTANTS = (
    FitConstant(name="node_alpha", start=1e-5, low=2e-6, high=5e-5),
    FitConstant(name="node_beta", start=1 / 20e9, low=1 / 150e9, high=1 / 2e9),
    FitConstant(name="network_alpha", start=4e-5, low=5e-6, high=3e-4),
    FitConstant(name="network_beta", start=1 / 8e9, low=1 / 12.5e9, high=1 / 1e9),
    FitConstant(name="host_alpha", start=5e-5, low=2e-6, high=3e-3),
    FitConstant(name="host_beta", start=1 / 3e9, low=1 / 16e9, high=1 / 0.2e9),
    FitConstant(name="conv_whole", start=0.2, low=0.01, high=0.9),
    FitConstant(name="decode_seconds", start=1e-3, low=1e-4, high=1e-2),
    FitConstant(name="node_seconds", start=3e-4, low=1e-5, high=1e-2),
    FitConstant(name="spread", start=0.1, low=1e-2, high=1.5),
    FitConstant(name="handing_beta", start=1 / 0.5e9, low=1 / 16e9, high=1 / 0.1e9),
    FitConstant(name="overhead_seconds", start=2e-3, low=1e-4, high=5e-2),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """What came out: accuracies by series, beside ParaDL's on the same runs, and what repeats say of the noise."""

    fit: Fit
    ours: Mapping[str, float]
    paradl: Mapping[str, float]
    noise: Mapping[str, float]
    repeated: Mapping[str, Mapping[str, float]]
    """Of series with repeated runs: accuracy of one run for another, and ours on the same runs, and their number."""
    counts: Mapping[str, tuple[int, int]]
    """Runs of a series: fitted on, and only predicted."""
    held_out: Mapping[str, float]
    """Accuracy on the runs that were only predicted."""
    crossed: Mapping[str, float]
    """Accuracy on runs with 32 or 64 devices if constants are fitted on at most 16."""
    coverage: Mapping[str, Coverage]
    """Of runs left out of a fit by its 90 % intervals: of a fifth of the runs in turn, and of runs
    with more devices than any that was fitted. Runs in managed memory are not among them."""
    rows: Sequence[Mapping[str, Any]]


def score(models: Mapping[str, Network], runs: Sequence[Run]) -> Scores:
    """Fit on the runs with few devices and score all, of models that are known."""
    iterations = [describe(models[run.model], run, seconds_of(models[run.model], runs)) for run in runs]
    measured = np.array([run.seconds_per_iteration for run in runs])
    nodes = max(1, max(run.devices for run in runs) // NODE)
    fitting = np.array([run.devices <= MOST_DEVICES and managed(run) is False for run in runs])

    def predict(values: Mapping[str, float]) -> np.ndarray:
        return iteration_terms(machine(values, nodes), iterations).total

    devices = {"devices": [run.devices for run in runs]}
    fit, predicted = leave_out(CONSTANTS, predict, measured, ~fitting, covariates=devices)
    few = np.array([run.devices <= 16 for run in runs])
    _, crossing = leave_out(CONSTANTS, predict, measured, ~(fitting & few), starts=2)
    terms = iteration_terms(machine(fit.values, nodes), iterations)
    series: dict[str, list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        series[series_of(run)].append(place)
        if run.strategy == "data" and run.model == "resnet50" and run.devices <= MOST_DEVICES:
            series[f"{series_of(run)} up to {MOST_DEVICES}"].append(place)
    usual = np.array([not managed(run) for run in runs])
    beyond = usual & ~fitting
    low, high = fit.interval(predicted, covariates=devices)
    covered = {
        "more devices": coverage(low[beyond], high[beyond], measured[beyond]),
        "a fifth": _fifths(predict, runs, measured, usual),
    }
    ours = 1 - np.abs(predicted / measured - 1)
    cross = 1 - np.abs(crossing / measured - 1)
    theirs = np.array([_paradl_accuracy(models[run.model], run) for run in runs])
    most = np.array([run.devices for run in runs])
    held = {name: [place for place in places if not fitting[place]] for name, places in series.items()}
    next_sizes = {
        name: [place for place in places if 16 < most[place] <= MOST_DEVICES and fitting[place]]
        for name, places in series.items()
    }
    paradl = {name: float(theirs[places].mean()) for name, places in series.items()}
    as_filter = series.get(MISLABELLED, [])
    if as_filter:  # the logs are data+spatial by their code, but were compared with the projection of data+filter
        paradl[f"{MISLABELLED} as data+filter"] = mean(
            _paradl_accuracy(models[runs[place].model], runs[place], "data+filter") for place in as_filter
        )
    return Scores(
        fit=fit,
        ours={name: float(ours[places].mean()) for name, places in series.items()},
        paradl=paradl,
        noise={name: noise([runs[place] for place in places]) for name, places in series.items()},
        repeated={
            name: found
            for name, places in series.items()
            if (found := repeats([runs[i] for i in places], ours[places]))
        },
        counts={name: (len(places) - len(held[name]), len(held[name])) for name, places in series.items()},
        held_out={name: float(ours[places].mean()) for name, places in held.items() if places},
        crossed={name: float(cross[places].mean()) for name, places in next_sizes.items() if places},
        coverage=covered,
        rows=[row(run, float(predicted[i]), terms, i, float(theirs[i])) for i, run in enumerate(runs)],
    )


def _fifths(
    predict: Predict, runs: Sequence[Run], measured: np.ndarray, usual: np.ndarray, *, folds: int = 5
) -> Coverage:
    """Return the coverage of runs by fits on the others: a fifth of the configurations is left out in turn."""
    keys = [(run.model, run.strategy, run.devices, run.batch) for run in runs]
    names = sorted(set(keys))
    order = rng(0, "folds", 0).permutation(len(names))
    fold = np.array([int(order[names.index(key)]) % folds for key in keys])
    low, high = np.zeros((2, len(runs)))
    for number in range(folds):
        held = usual & (fold == number)
        fit, predicted = leave_out(CONSTANTS, predict, measured, ~usual | held, starts=2)
        low[held], high[held] = (end[held] for end in fit.interval(predicted))
    return coverage(low[usual], high[usual], measured[usual])


def data_parallel_mean(values: Mapping[str, float]) -> float:
    """Return the mean over the data-parallel series, each over all of its runs."""
    found = [value for name, value in values.items() if name.endswith(" data")]
    return mean(found) if found else math.nan


def machine(values: Mapping[str, float], nodes: int) -> Machine:
    """Return ABCI with these constants: four devices a node, two rails, host memory for what MPI exchanges."""
    tiers = (
        NetworkLevel(name="node", devices=NODE, alpha=values["node_alpha"], bandwidth=1 / values["node_beta"]),
        NetworkLevel(
            name="network",
            devices=nodes * NODE,
            alpha=values["network_alpha"],
            bandwidth=1 / values["network_beta"],
            links_per_node=2,
        ),
    )
    return Machine(
        cluster=Cluster(nodes, NODE, tiers=tiers if nodes > 1 else tiers[:1]),
        algorithms=frozenset({"ring", "tree"}),  # NCCL 2.4
        host=NetworkLevel(name="host", devices=NODE, alpha=values["host_alpha"], bandwidth=1 / values["host_beta"]),
        whole={"conv": values["conv_whole"]},
        decode_seconds=values["decode_seconds"],
        node_rate=1 / values["node_seconds"],
        spread=values["spread"],
        handing_seconds=values["handing_beta"],
        overhead_seconds=values["overhead_seconds"],
    )


def describe(network: Network, run: Run, seconds: float) -> Iteration:
    """Return what an iteration of a run is made of: the oracle's exchanges and shares for its strategy.

    Exchanges of layers went through MPI and host memory, gradients through NCCL; in hybrids one process of each node
    read the batch and handed it on (what the training scripts say, GitHub `ankahira/paraDL`). Gradients of inputs of
    divided filters were summed on all devices (arXiv 2104.09075, section 4.2), where the oracle plans to scatter them.
    """
    axis = "" if run.strategy == "data" else run.strategy.rsplit("+", 1)[-1]
    degrees = Degrees(data=run.groups, **({axis: run.devices // run.groups} if axis else {}))
    profile = _profile(network, axis, seconds)
    plan = _oracle(run.devices).estimate(profile, batch=run.batch, degrees=degrees, optimizer="adam")
    iteration = iteration_of(
        profile,
        plan,
        staged=("filter", "spatial"),
        sample_bytes=SAMPLE_BYTES.get(network.name, IMAGE_BYTES),
        handed_on=bool(axis),
    )
    if axis != "filter":
        return iteration
    exchanges = tuple(
        replace(each, operation="all_reduce") if each.operation == "reduce_scatter" else each
        for each in iteration.exchanges
    )
    return replace(iteration, exchanges=exchanges)


@functools.cache
def _oracle(devices: int) -> Oracle:
    """Return an oracle for ABCI's shape; the seconds of its links are not asked for."""
    nodes = max(1, devices // NODE)
    tiers = (
        NetworkLevel(name="node", devices=NODE, alpha=1e-5, bandwidth=50e9),
        NetworkLevel(name="network", devices=max(2, nodes) * NODE, alpha=4e-5, bandwidth=12.5e9, links_per_node=2),
    )
    device = Device(kind="V100-16GB", flops={"fp32": 15.7e12}, memory_bandwidth=900e9)
    return Oracle(Cluster(nodes, NODE, device=device, tiers=tiers[: 2 if nodes > 1 else 1]))


@functools.cache
def _profile(network: Network, axis: str, seconds: float) -> Profile:
    """Return a network's layers with its seconds of a sample spread over them, backward twice forward.

    Of a spatial strategy the layers beyond its table's last have no places to divide: there it gathered.
    """
    work = sum(layer.forward_flops for layer in network.layers)
    layers = []
    for place, layer in enumerate(network.layers):
        share = seconds * layer.forward_flops / work
        timed = replace(layer, forward_seconds=share / 3, backward_seconds=2 * share / 3)
        if axis == "spatial" and place > max(network.spatial):
            timed = replace(timed, kernel=(), stride=(), padding=(), input_size=(), output_size=())
        layers.append(timed)
    return Profile(name=network.name, batch=1, blocks=(Block(name=network.name, layers=tuple(layers)),))


def seconds_of(network: Network, runs: Sequence[Run]) -> float:
    """Return a model's seconds of a sample on one device: of the table, or of its run alone where that is less."""
    alone = [run.seconds_per_iteration / run.batch for run in runs if run.devices == 1 and run.model == network.name]
    return min([network.seconds_per_sample, *alone])


def _paradl_accuracy(network: Network, run: Run, strategy: str = "") -> float:
    return 1 - abs(paradl_seconds(network, run, strategy) - run.seconds) / run.seconds


def managed(run: Run) -> bool:
    """Return whether a run kept more in managed memory than a device holds (the data set's caveat 5)."""
    return run.strategy != "data" and run.model != "resnet50"


def series_of(run: Run) -> str:
    """Name the series of a run: model, strategy, and the samples of a group where one strategy ran with several."""
    each = run.batch // run.groups
    usual = {"alexnet": 512, "resnet50": 64}.get(run.model, each)
    return f"{run.model} {run.strategy}" + ("" if each == usual else f", {each} a group")


def noise(runs: Sequence[Run]) -> float:
    """Return the accuracy that the runs have of themselves: what no prediction of one number can exceed by much.

    Of several runs of one configuration: that of the best single number for all their medians. Of a run alone: that of
    its own median for its epochs.
    """
    same: dict[tuple[str, str, int, int], list[Run]] = defaultdict(list)
    for run in runs:
        same[run.model, run.strategy, run.devices, run.batch].append(run)
    found = []
    for group in same.values():
        medians = [run.seconds for run in group]
        if len(group) > 1:
            best = max(mean(1 - abs(one - other) / other for other in medians) for one in medians)
            found += [best] * len(group)
        else:
            middle = median(group[0].epochs)
            found.append(mean(max(0.0, 1 - abs(middle - epoch) / epoch) for epoch in group[0].epochs))
    return mean(found)


def repeats(runs: Sequence[Run], ours: np.ndarray) -> dict[str, float]:
    """Return how well another run of the same configuration predicts a run, and how well we do on the same runs.

    Every run that has others is predicted by each of them; {} if none has.
    """
    by_another, by_us = [], []
    for run, own in zip(runs, ours, strict=True):
        key = (run.model, run.strategy, run.devices, run.batch)
        others = [
            each.seconds
            for each in runs
            if each is not run and (each.model, each.strategy, each.devices, each.batch) == key
        ]
        if others:
            by_another.append(mean(1 - abs(other - run.seconds) / run.seconds for other in others))
            by_us.append(float(own))
    return {"one_run_by_another": mean(by_another), "ours": mean(by_us), "runs": len(by_us)} if by_us else {}


def row(run: Run, predicted: float, terms: Terms, place: int, theirs: float) -> dict[str, Any]:
    """Return one run with what was predicted for it, in seconds of an iteration."""
    return {
        "series": series_of(run),
        "devices": run.devices,
        "batch": run.batch,
        "measured": run.seconds_per_iteration,
        "predicted": predicted,
        "accuracy": 1 - abs(predicted / run.seconds_per_iteration - 1),
        "accuracy_paradl": theirs,
        "terms": {name: float(getattr(terms, name)[place]) for name in Terms._fields},
        "run": run.path,
    }
