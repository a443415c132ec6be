"""Public measured training steps, each as a table that `trainwright plan fit` reads, with the preset of its machine.

The tables in `published/` are transcribed from: Megatron-LM (arXiv 2104.04473, table 1, micro-batches and chunks of
`examples/sc21/run_table_1.sh`); Korthikanti et al. (arXiv 2205.05198, table 5, full recomputation); Megatron-Bridge
25.11 (GitHub `NVIDIA-NeMo/Megatron-Bridge`, `docs/performance-summary.md`; DeepSeek-V3, whose latent attention has no
columns, and a row without its batch are left out); the Llama 3 report (arXiv 2407.21783, table 4, with eight chunks a
stage, which it does not say); torchtitan's reports (GitHub `pytorch/torchtitan`, `benchmarks/`; float8 by rows, which
its report calls a defect, left out; asynchronous tensor parallelism counts as synchronous). vTrain's measurements
(GitHub `VIA-Research/vTrain`) and ABCI's logs (GitHub `ankahira/paraDL`) are read from the data folder. vTrain's single
servers are taken as without recomputation: with it their large layers would exceed the device's peak.
"""

import csv
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.plan import abci

from trainwright.cluster import Cluster
from trainwright.model.layer import Block
from trainwright.model.profile import Profile
from trainwright.plan.fit.measured_run import MeasuredRun
from trainwright.plan.fit.run_table import read_runs
from trainwright.plan.layout import Degrees, Layout

__all__ = ["Source", "read_sources"]

RUNS = Path(__file__).parent / "published"
TABLES = (
    ("Megatron-LM, 1.7B to 1T", "dgx-a100", "megatron_sc21", "Megatron"),
    ("Megatron-LM, 22B to 1T", "dgx-a100", "korthikanti", "Megatron"),
    ("torchtitan, H100", "grand-teton", "torchtitan_h100", "torchtitan"),
    ("torchtitan, H200", "dgx-h200", "torchtitan_h200", "torchtitan"),
    ("Llama 3 405B", "dgx-h100", "llama3_report", "Llama 3"),
    ("Megatron-Bridge, H100", "dgx-h100", "megatron_bridge_h100", "Megatron-Bridge"),
    ("Megatron-Bridge, B200", "dgx-b200", "megatron_bridge_b200", "Megatron-Bridge"),
    ("Megatron-Bridge, GB200", "gb200-nvl72", "megatron_bridge_gb200", "Megatron-Bridge"),
    ("Megatron-Bridge, GB300", "gb300-nvl72", "megatron_bridge_gb300", "Megatron-Bridge"),
)
_VTRAIN = {
    "# GPUs": "devices", "global batch": "batch", "micro batch": "micro", "hidden size": "hidden",
    "attention heads": "heads", "# layers": "layers", "sequence length": "sequence", "tensor parallelism": "tensor",
    "data parallelism": "data", "pipeline parallelism": "pipeline",
}  # fmt: skip
_EVERY = 7  # row of vTrain's single servers is taken


@dataclass(frozen=True, kw_only=True)
class Source:
    """Runs of one publication on one machine; those of one `family` are left out together."""

    name: str
    family: str
    cluster: Cluster
    runs: tuple[MeasuredRun, ...]

    def take(self, runs: Sequence[MeasuredRun]) -> "Source":
        """Return the source with some of its runs."""
        return replace(self, runs=tuple(runs))


def read_sources(data: Path) -> list[Source]:
    """Return every source whose table is there."""
    found = [_read_table(name, preset, RUNS / f"{table}.csv", family) for name, preset, table, family in TABLES]
    folder = data / "parallel" / "vtrain"
    for name, table, every, recompute in (
        ("vTrain, one server", "single", _EVERY, "none"),
        ("vTrain, many servers", "multi", 1, "full"),
    ):
        path = folder / f"ground_truth_{table}.csv"
        if path.exists():
            found.append(_read_vtrain(name, path, every, recompute))
    if (data / "abci" / "epochs.csv").exists():
        found.append(_read_abci(data / "abci"))
    return found


def _read_table(name: str, preset: str, path: Path, family: str) -> Source:
    runs = read_runs(path, Cluster.preset(preset)).runs
    return Source(name=name, family=family, cluster=_enlarge(preset, runs), runs=runs)


def _enlarge(preset: str, runs: Sequence[MeasuredRun]) -> Cluster:
    """Return a preset with nodes for the largest run."""
    most = max(run.layout.devices for run in runs)
    # The data sheet alone: what presets add to it was fitted to these very runs.
    nodes = max(2, math.ceil(most / Cluster.preset(preset).devices_per_node))
    return Cluster.preset(preset, nodes=nodes, typical=False)


def _read_vtrain(name: str, path: Path, every: int, recompute: str) -> Source:
    with path.open() as file:
        rows = list(csv.DictReader(file))[::every]
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "runs.csv"
        with table.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*_VTRAIN.values(), "model", "precision", "recompute", "seconds"])
            for row in rows:
                model = f"{row['hidden size']} x {row['# layers']}"
                seconds = float(row["iteration time (ms)"]) / 1e3
                writer.writerow([*(row[column] for column in _VTRAIN), model, "amp-fp16", recompute, seconds])
        return _read_table(name, "dgx-a100", table, "vTrain")


def _read_abci(folder: Path) -> Source:
    """Return the data-parallel logs of networks that are known by their layers' measured times."""
    networks = abci.networks(folder)
    runs = []
    for run in abci.runs(folder):
        if run.model in networks and run.strategy == "data":
            layout = Layout(
                strategy="data",
                degrees=Degrees(data=run.devices),
                batch=run.batch,
                micro_batch=max(1, run.batch // run.devices),
            )
            runs.append(
                MeasuredRun(
                    profile=_profile_of(networks[run.model]),
                    layout=layout,
                    seconds=run.seconds_per_iteration,
                    optimizer="momentum",
                    model=run.model,
                    where=run.path,
                )
            )
    return Source(name="ABCI, data parallel", family="ABCI", cluster=_enlarge("abci-v100", runs), runs=tuple(runs))


def _profile_of(network: abci.Network, known: dict[str, Profile] = {}) -> Profile:  # noqa: B006 -- one profile a network
    """Return a network's layers with its measured seconds of a sample spread over them, backward twice forward."""
    if network.name not in known:
        work = sum(layer.forward_flops for layer in network.layers)
        layers = []
        for layer in network.layers:
            share = network.seconds_per_sample * layer.forward_flops / work
            layers.append(replace(layer, forward_seconds=share / 3, backward_seconds=2 * share / 3))
        block = Block(name=network.name, layers=tuple(layers))
        known[network.name] = Profile(
            name=network.name, batch=1, blocks=(block,), parameters=sum(layer.weight_elements for layer in layers)
        )
    return known[network.name]
