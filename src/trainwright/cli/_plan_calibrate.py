"""`trainwright plan calibrate` measures a machine by all ranks that were started; `import-network` asks tools."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from trainwright.cli.command import Argument, ClusterName, Nodes, Option, Result
from trainwright.cli.formatting import print_table
from trainwright.cli.inputs import find_cluster
from trainwright.cluster import Cluster
from trainwright.cluster.calibration.ranks import RankPlace, find_rank_place
from trainwright.errors import InputError
from trainwright.files import read_text
from trainwright.validators import check, number

__all__ = ["calibrate", "import_network"]

_BUSY = 0.5  # load a core from which other work is likely to have lengthened every time


def calibrate(
    *,
    out: Annotated[Path, Option(help="The cluster file to write, .toml.")],
    devices: Annotated[str, Option(help="cpu or cuda.")] = "cpu",
    launch: Annotated[str | None, Option(help="What started the ranks: torchrun, slurm or mpi.")] = None,
    storage: Annotated[Path | None, Option(help="Folder to measure storage in [that of --out].")] = None,
    repeats: Annotated[int, Option(help="How often each thing is timed.")] = 25,
    largest: Annotated[float, Option(help="Largest message in bytes.")] = 64 * 2**20,
    file: Annotated[float, Option(help="Bytes of the file that is written and read.")] = 256 * 2**20,
) -> Result | None:
    """Measure compute, memory, storage and, on two ranks or more, links; write them with their errors."""
    # Measuring needs torch, which the other commands of `plan` do without.
    from trainwright.cluster.calibration.calibrate import calibrate as measure

    here = find_rank_place(launch)
    folder = storage if storage is not None else out.parent
    if not folder.is_dir():
        raise InputError(f"{'--storage' if storage else '--out'}: got {folder}, which is no folder; make it first")
    for option, size in (("--largest", largest), ("--file", file)):
        check(size, number(minimum=256, maximum=1e12, of="bytes"), option)
    cluster = measure(
        here,
        devices=devices,
        name=out.stem,
        folder=folder,
        repeats=repeats,
        largest=int(largest),
        file_bytes=int(file),
        say=lambda text: print(f"measuring {text}", file=sys.stderr, flush=True),
    )
    # Rank 0 has the result.
    if cluster is None:
        return None
    cluster.save(out)
    notes = _notes(cluster, here)
    _show(cluster, notes)
    print(f"cluster file: {out}")
    return Result({**asdict(cluster), "cluster": cluster.name, "out": str(out), "notes": notes})


def import_network(
    files: Annotated[
        list[Path], Argument(help="Output of nvidia-smi topo -m or of nccl-tests, or Slurm's topology.conf.")
    ],
    *,
    cluster: ClusterName,
    nodes: Nodes = None,
    out: Annotated[Path, Option(help="The cluster file to write, .toml.")],
) -> Result:
    """Give a cluster the network that tools have measured or described, and write it."""
    from trainwright.cluster.calibration.tool_output import adapt_cluster

    texts = {str(file): read_text(file, "tool output", allowed="a text file") for file in files}
    found = adapt_cluster(find_cluster(cluster, nodes), texts)
    found.save(out)

    def show() -> None:
        names = ("devices", "alpha", "bandwidth", "reached", "links_per_node")
        rows = [(tier.name, *(f"{getattr(tier, name):.4g}" for name in names)) for tier in found.tiers]
        print_table(("level", *names), rows)
        print(f"cluster file: {out}")

    content = {"cluster": found.name, "nodes": found.nodes, "out": str(out)}
    return Result({**content, "tiers": [asdict(tier) for tier in found.tiers]}, show)


def _notes(cluster: Cluster, here: RankPlace) -> list[str]:
    notes = []
    if here.world == 1:
        notes.append("one rank: links need two ranks or more, started by torchrun, srun or mpirun")
    # Other work lengthens every time that is measured.
    load, cores = float(cluster.conditions.get("load_before", 0.0)), os.cpu_count() or 1
    if load > _BUSY * cores:
        notes.append(f"load of {load:g} on {cores} cores before the start: measure again on a quiet machine")
    if worlds := sorted({ranks for tier in cluster.tiers for ranks in tier.worlds}):
        sizes = ", ".join(map(str, worlds))
        notes.append(f"ranks that share processors: holds for groups of {sizes} ranks, and is refused for others")
    return notes


def _show(cluster: Cluster, notes: list[str]) -> None:
    """Print the figures of the file, in its words and units, and the errors of what was fitted."""
    device, storage = cluster.device, cluster.storage
    rows = [(f"flops, {name}", rate) for name, rate in device.flops.items()]
    rows += [(f"efficiency, {kind}", share) for kind, share in device.efficiency.items()]
    rows += [(name, getattr(device, name)) for name in ("memory_bandwidth", "launch_seconds", "host_bandwidth")]
    for tier in cluster.tiers:
        rows += [(f"{name}, tier {tier.name}", getattr(tier, name)) for name in ("alpha", "bandwidth")]
    rows += [(f"storage, {name}", getattr(storage, name)) for name in ("node_read", "write")]
    rows += [(f"error, {name}", error) for name, error in cluster.errors.items()]
    print(f"{device.kind}: {cluster.nodes} x {cluster.devices_per_node} devices\n")
    print_table(("what", "measured"), [(name, f"{value:.4g}") for name, value in rows if value])
    for note in notes:
        print(f"note: {note}")
