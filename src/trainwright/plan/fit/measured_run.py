"""Measured training steps, their predictions for any cluster, and what these must beat: constant seconds or MFU."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainwright.cluster import Cluster
from trainwright.model.profile import Profile
from trainwright.plan.layout import Layout
from trainwright.plan.parallel.mesh import Floats, Mesh
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.precision import optimizer_of, precision_of
from trainwright.plan.parallel.pricing import Pricer
from trainwright.plan.parallel.roofline import peak_flops
from trainwright.plan.parallel.single_plan import mesh_of_layout

__all__ = ["MeasuredRun", "RunPredictor", "constant_mfu_seconds", "constant_seconds", "peak_seconds"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """A training that was timed: the model, how it was run, and the seconds of an iteration (0: to be predicted)."""

    profile: Profile
    layout: Layout
    seconds: float
    optimizer: str = "adamw"
    context_by: str = ""
    """Whether context ranks pass keys and values round and divide the whole model, as other frameworks' do."""
    model: str = ""
    """A name, by which runs are left out together; by default the profile's."""
    peak_bytes: int = 0
    """Measured bytes of the fullest device, 0 where nobody knows."""
    where: str = ""
    """Where the run was read from, for messages."""

    @property
    def model_flops(self) -> float:
        """Operations of an iteration that the model itself needs, without those that are done again."""
        layers = self.profile.layers
        work = sum(layer.forward_flops + layer.backward_flops for layer in layers) / self.profile.batch
        return work * self.layout.batch


@dataclass(frozen=True, eq=False, slots=True)
class _Group:
    """Runs of one model, precision and optimizer, which are priced in one go."""

    rows: list[int]
    arrays: ModelArrays
    mesh: Mesh
    optimizer: str
    most_parts: int


class RunPredictor:
    """Predicts the seconds and bytes of many runs again and again, for one cluster after the other."""

    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        self.runs = tuple(runs)
        self._groups = list(_group_runs(self.runs))

    def seconds(self, cluster: Cluster) -> Floats:
        """Return the predicted seconds of an iteration of each run: what `Oracle.estimate` gives."""
        found = np.zeros(len(self.runs))
        for group in self._groups:
            pricer = Pricer(group.arrays, cluster, optimizer_of(group.optimizer), most_parts=group.most_parts)
            prices = pricer.price(group.mesh)
            exposed = np.array([pricer.exposed(prices, row) for row in range(len(group.rows))])
            found[group.rows] = prices.total - prices.exposed + exposed
        return found


def _group_runs(runs: Sequence[MeasuredRun]) -> Iterator[_Group]:
    places: dict[tuple[object, ...], list[int]] = {}
    for place, run in enumerate(runs):
        layout = run.layout
        key = (id(run.profile), layout.precision, run.optimizer, run.context_by)
        places.setdefault(key, []).append(place)
    arrays: dict[tuple[object, ...], ModelArrays] = {}
    for rows in places.values():
        first = runs[rows[0]]
        one: tuple[object, ...] = (id(first.profile), first.layout.precision, first.context_by)
        if one not in arrays:
            arrays[one] = ModelArrays(first.profile, precision_of(first.layout.precision), first.context_by)
        mesh = Mesh.join([mesh_of_layout(arrays[one], runs[row].layout) for row in rows])
        parts = int((mesh.axis("pipeline") * mesh.chunks).max())
        yield _Group(rows, arrays[one], mesh, first.optimizer, parts)


def constant_seconds(runs: Sequence[MeasuredRun], others: Sequence[MeasuredRun]) -> Floats:
    """Return for each of the others the geometric mean of the measured seconds."""
    seconds: Floats = np.full(len(others), np.exp(np.log([run.seconds for run in runs]).mean()))
    return seconds


def constant_mfu_seconds(cluster: Cluster, runs: Sequence[MeasuredRun], others: Sequence[MeasuredRun]) -> Floats:
    """Return what each of the others takes at the mean share of the peak (MFU) that the measured runs reached."""
    share = np.exp(np.mean([np.log(peak_seconds(cluster, run) / run.seconds) for run in runs]))
    seconds: Floats = np.array([peak_seconds(cluster, run) for run in others]) / share
    return seconds


def peak_seconds(cluster: Cluster, run: MeasuredRun) -> float:
    """Return what the model's own operations would take at the devices' peak."""
    return run.model_flops / (peak_flops(cluster, precision_of(run.layout.precision)) * run.layout.devices)
