"""The ABCI tables: layers of four networks, epochs of their runs, and what ParaDL projected for them."""

import csv
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.plan.paradl import ParaDL, Projection, Variant

from trainwright.model.layer import Layer

__all__ = ["LATEST", "Network", "Run", "networks", "paradl_seconds", "reproduce", "runs"]

SAMPLES = {"cosmoflow": 1584, "cosmoflow_256": 1584}  # others: ImageNet
PROJECTED_IMAGES = 1_280_000  # as ParaDL counts them
_KINDS = {"CONV": "conv", "MPOO": "pool", "APOO": "pool", "RELU": "pointwise", "BNOR": "norm", "FC": "linear"}

LATEST = Variant()
VARIANTS: Mapping[str, Variant] = {
    "last state": LATEST,
    "cables of 15 us": Variant(cable_seconds=15e-6),
    "cables of 0 us": Variant(cable_seconds=0.0),
    "divided gradients, contention p2": Variant(contention=4.0, divided_gradients=True),
    "divided gradients, contention p2, cables of 15 us": Variant(
        contention=4.0, divided_gradients=True, cable_seconds=15e-6, staged=False
    ),
    "divided gradients, contention p2 = 2, cables of 15 us": Variant(
        contention=2.0, divided_gradients=True, cable_seconds=15e-6
    ),
    "no contention": Variant(contention=1.0),
    "gather as contended as halos": Variant(gather_contention=8.0),
    "gather as contended as halos, contention 2": Variant(gather_contention=8.0, contention=2.0),
}
# The states that printed the published projections of each strategy, and of data+spatial of each model.
PUBLISHED: Mapping[str, Variant] = {
    "data": VARIANTS["cables of 15 us"],
    "spatial": LATEST,
    "data+filter": LATEST,
    "data+spatial": VARIANTS["gather as contended as halos"],
    "resnet50 data+spatial": VARIANTS["divided gradients, contention p2, cables of 15 us"],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A layer table: the layers, the measured seconds of a sample, and which layers each strategy divides."""

    name: str
    layers: tuple[Layer, ...]
    seconds_per_sample: float
    filter: frozenset[int]
    channel: frozenset[int]
    spatial: frozenset[int]

    def paradl(self, strategy: str, variant: Variant) -> ParaDL:
        """Return ParaDL's formulas for this network, with the layers that a strategy divides."""
        part = strategy.rsplit("+", 1)[-1]
        return ParaDL(
            layers=self.layers,
            seconds_per_sample=self.seconds_per_sample,
            samples=SAMPLES.get(self.name, PROJECTED_IMAGES),
            divided={"filter": self.filter, "channel": self.channel, "spatial": self.spatial}.get(part, frozenset()),
            variant=variant,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One training: the median of its epochs after the first without validation."""

    model: str
    strategy: str
    devices: int
    groups: int
    """Devices / groups share a sample."""
    batch: int
    """Samples of an iteration."""
    iterations: float
    seconds: float
    """Of an epoch, the median."""
    epochs: tuple[float, ...]
    path: str

    @property
    def seconds_per_iteration(self) -> float:
        """Seconds of the median epoch over its iterations."""
        return self.seconds / self.iterations


def networks(folder: Path) -> dict[str, Network]:
    """Read the layer tables."""
    return {path.stem.removeprefix("layers_"): _network(path) for path in sorted(folder.glob("layers_*.csv"))}


def runs(folder: Path) -> list[Run]:
    """Read the runs that have an epoch after the first without validation."""
    epochs: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    with (folder / "epochs.csv").open() as file:
        for row in csv.DictReader(file):
            if int(row["epoch"]) > 1 and row["with_validation"] == "0":
                epochs[row["source_path"], row["model"], row["strategy"], row["gpus"]].append(row)
    found = []
    for (path, model, strategy, gpus), rows in epochs.items():
        devices = int(gpus)
        # ParaDL's data+filter and data+spatial runs put a group on a node; where a table has no groups it is data.
        groups = int(rows[0]["p1"] or (devices if strategy == "data" else max(1, devices // 4)))
        found.append(
            Run(
                model=model,
                strategy=strategy,
                devices=devices,
                groups=groups,
                batch=round(float(rows[0]["global_batch"])),
                iterations=median(float(row["iterations"]) for row in rows),
                seconds=median(float(row["seconds"]) for row in rows),
                epochs=tuple(float(row["seconds"]) for row in rows),
                path=path,
            )
        )
    return sorted(found, key=lambda run: (run.model, run.strategy, run.batch // run.groups, run.devices, run.path))


def project(formulas: ParaDL, strategy: str, devices: int, batch: int, groups: int) -> Projection:
    """Ask ParaDL's formulas by the name of a strategy."""
    if strategy == "serial":
        return formulas.serial(batch)
    ask = getattr(formulas, strategy.replace("+", "_"))
    answer = ask(devices, batch, group=devices // groups) if "+" in strategy else ask(devices, batch)
    assert isinstance(answer, Projection)
    return answer


def paradl_seconds(network: Network, run: Run, strategy: str = "") -> float:
    """Return the epoch that ParaDL projects for a run, if asked as another strategy than the run's."""
    strategy = strategy or run.strategy
    state = PUBLISHED.get(f"{network.name} {strategy}") or PUBLISHED[strategy]
    formulas = network.paradl(strategy, state)
    return project(formulas, strategy, run.devices, run.batch, run.groups).seconds


def reproduce(folder: Path, models: Mapping[str, Network]) -> tuple[dict[str, int], list[dict[str, str]], int]:
    """Return how many of ParaDL's printed rows each state of its script explains, the rows left, and their number.

    A row is explained if compute, communication and bytes equal what it printed to its 12 digits.
    """
    explained: dict[str, int] = defaultdict(int)
    left = []
    with (folder / "paradl_projections.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        name = next((name for name, variant in VARIANTS.items() if _equal(models[row["model"]], row, variant)), "")
        if name:
            explained[name] += 1
        else:
            left.append(row)
    return dict(explained), left, len(rows)


def _equal(network: Network, row: Mapping[str, str], variant: Variant) -> bool:
    strategy, devices = row["strategy"], int(row["gpus"])
    got = project(
        network.paradl(strategy, variant), strategy, devices, int(float(row["global_batch"])), int(row["p1"] or 1)
    )
    pairs = (
        (got.compute_seconds, float(row["compute_seconds"])),
        (got.communication_seconds, float(row["communication_seconds"])),
        (got.memory_bytes, float(row["memory_bytes"])),
    )
    return all(math.isclose(a, b, rel_tol=2e-9, abs_tol=1e-9) for a, b in pairs)


def _network(path: Path) -> Network:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    filters = _split(rows, "split_filter")
    return Network(
        name=path.stem.removeprefix("layers_"),
        layers=tuple(_layer(row) for row in rows),
        seconds_per_sample=sum(float(row["seconds_per_sample_given"]) for row in rows),
        filter=filters,
        channel=_split(rows, "split_channel") or filters,  # the one list that ParaDL's script was given for both
        spatial=_split(rows, "split_spatial"),
    )


def _split(rows: list[dict[str, str]], column: str) -> frozenset[int]:
    return frozenset(i for i, row in enumerate(rows) if row[column] == "1")


def _layer(row: Mapping[str, str]) -> Layer:
    x, w, y = (tuple(int(size) for size in row[name].split("x")) for name in ("x", "w", "y"))
    # The rule's 2 * forward + weights; a table gives a layer's work once, so it stands in one field.
    return Layer(
        name=f"{row['index']}.{row['layer']}",
        kind=_KINDS.get(row["layer"].rstrip("0123456789_abcdef")[:4], "other"),  # type: ignore[arg-type]
        input_elements=int(row["x_elements"]),
        output_elements=int(row["y_elements"]),
        weight_elements=int(row["w_elements"]),
        forward_flops=float(row["flops_rule"]),
        channels=x[0],
        filters=y[0],
        kernel=w[2:],
        stride=tuple(max(1, round(before / after)) for before, after in zip(x[1:], y[1:], strict=True)),
        padding=tuple((size - 1) // 2 for size in w[2:]),
        input_size=x[1:],
        output_size=y[1:],
    )
