"""Imports a network topology: from `nvidia-smi topo -m`, Slurm's topology.conf, and the tables of nccl-tests.

A base cluster, such as a preset, says what the tools do not: the speed of a device, and of links that nobody timed.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.sparse.csgraph import connected_components

from trainwright.cluster.calibration.fit_cluster import MeasuredLevel, fit_link
from trainwright.cluster.cluster import Cluster
from trainwright.cluster.network import ExchangeTimes, NetworkLevel, Operation
from trainwright.errors import InputError

__all__ = ["adapt_cluster"]

_RANK = re.compile(r"^#\s+Rank\s+(\d+)\b.*\bon\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s*(.*)$", re.MULTILINE)
_TABLE_ROW = re.compile(r"^\s*\d+\s+\d+\s+\w+\s+\w+\s.*$", re.MULTILINE)
_SWITCH = re.compile(r"^\s*(?:SwitchName|BlockName)=(\S+)([^#\n]*)", re.MULTILINE | re.IGNORECASE)
_OPERATIONS: Mapping[str, Operation] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send",
}
"""The operations by the names of the programs of nccl-tests."""


def adapt_cluster(base: Cluster, texts: Mapping[str, str]) -> Cluster:
    """Return the base with the levels and speeds that these texts tell of, by the names of their files.

    `nvidia-smi topo -m` says which devices of a node NVLink joins; the others meet over PCIe, at the base's
    `host_bandwidth`. Slurm's topology.conf says how many nodes a switch or block joins. A table of nccl-tests becomes
    measured times, which count for its group and operation; latency and bandwidth of its level are fitted to it, or,
    where a group has several ranks on each of several nodes, the share of the bandwidth that it reached. Raises
    `InputError` for a file of another kind or of another machine.
    """
    cluster, tables = base, list[tuple[str, str]]()
    for name, text in texts.items():
        if _SWITCH.search(text):
            cluster = _join_switches(cluster, name, text)
        elif "busbw" in text:
            tables.append((name, text))
        elif re.search(r"^\s*GPU0\s+X\b", text, re.MULTILINE):
            cluster = _divide_node(cluster, name, text)
        else:
            raise InputError(
                f"{name}: is no output that is known; allowed: nvidia-smi topo -m, Slurm's topology.conf, nccl-tests"
            )
    # Times belong to levels, which the other files may have changed.
    return _measure_levels(cluster, [(name, _read_table(cluster, name, text)) for name, text in tables])


def _divide_node(cluster: Cluster, name: str, text: str) -> Cluster:
    """Return the cluster with the levels of a node: groups that NVLink joins, and PCIe between them."""
    rows = re.findall(r"^\s*GPU\d+\s+((?:X|NV\d+|SYS|NODE|PHB|PXB|PIX)\b.*)$", text, re.MULTILINE)
    links = [row.split()[: len(rows)] for row in rows]
    devices = cluster.devices_per_node
    if len(rows) != devices:
        raise InputError(
            f"{name}: has {len(rows)} GPUs, a node of {cluster.name} {devices}; it is a file of another machine"
        )
    # Devices that NVLinks join, directly or through others, are one group.
    joined = np.array([[link.startswith("NV") for link in row] for row in links], dtype=np.int64)
    _, group = connected_components(joined)
    sizes = set(Counter(group.tolist()).values())
    if len(sizes) > 1:
        raise InputError(f"{name}: NVLink joins groups of {sorted(sizes)} GPUs; allowed: groups of one size")
    [size] = sizes
    if devices in {size, 1}:
        return cluster
    if not cluster.device.host_bandwidth:
        raise InputError(f"{name}: needs the speed of PCIe; give device.host_bandwidth in the file of {cluster.name}")
    inner = cluster.tiers[0]
    pcie = NetworkLevel(name="pcie", devices=devices, alpha=inner.alpha, bandwidth=cluster.device.host_bandwidth)
    within = [replace(inner, devices=size), pcie] if size > 1 else [pcie]
    return replace(cluster, tiers=(*within, *(tier for tier in cluster.tiers[1:] if tier.devices > devices)))


def _join_switches(cluster: Cluster, name: str, text: str) -> Cluster:
    """Return the cluster with a level for each rank of switches, at the speed of the base's network."""
    nodes: dict[str, int] = {}
    depths: dict[str, int] = {}
    for switch, rest in _SWITCH.findall(text):
        settings = dict(re.findall(r"(\w+)=(\S+)", rest.lower()))
        below = _expand_hostlist(settings.get("switches", ""))
        unknown = [one for one in below if one not in nodes]
        if unknown or ("nodes" in settings) == bool(below):
            raise InputError(
                f"{name}: switch {switch} has {'unknown switches' if unknown else 'no nodes and no switches'}; "
                "allowed: Nodes=..., or Switches=... of lines above"
            )
        own = len(_expand_hostlist(settings.get("nodes", "")))
        nodes[switch.lower()] = own + sum(nodes[one] for one in below)
        depths[switch.lower()] = 1 + max((depths[one] for one in below), default=0)
    top = max(depths.values())
    total = sum(count for switch, count in nodes.items() if depths[switch] == 1)
    network = cluster.tiers[-1] if cluster.tiers else None
    if network is None or (network.devices <= cluster.devices_per_node and total > 1):
        raise InputError(f"{name}: joins {total} nodes, but {cluster.name} has no network between nodes; add a tier")
    per_node = cluster.devices_per_node
    tiers = [tier for tier in cluster.tiers if tier.devices <= per_node]
    for depth in range(1, top + 1):
        # Racks differ by a node or two: the usual size stands for all.
        usual = Counter(nodes[one] for one in nodes if depths[one] == depth).most_common(1)[0][0]
        if usual < total and usual * per_node > (tiers[-1].devices if tiers else 1):
            tiers.append(replace(network, name=f"switch-{depth}", devices=usual * per_node))
    tiers.append(replace(network, devices=total * per_node))
    return replace(cluster, nodes=total, tiers=tuple(tiers))


def _expand_hostlist(text: str) -> list[str]:
    """Return the names of a list such as "n[01-03,7],m5"."""
    names = []
    for head, inside, tail in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)", text):
        for part in inside.split(",") if inside else [""]:
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last) + 1) if last else [first]
            names += [f"{head}{str(number).zfill(len(first))}{tail}" for number in numbers]
    return names


def _read_table(cluster: Cluster, name: str, text: str) -> tuple[ExchangeTimes, float]:
    """Return the times of one run of nccl-tests, of no tier yet, and the best bandwidth of the slowest link.

    That is in bytes a second, by NVIDIA's factors.
    """
    ranks = {rank: (host, kind) for rank, host, kind in _RANK.findall(text)}
    hosts, kinds = {host for host, _ in ranks.values()}, {kind for _, kind in ranks.values()}
    model = cluster.device.kind.partition("-")[0]
    if any(kind and model.lower() not in kind.lower() for kind in kinds):
        raise InputError(f"{name}: is of {min(kinds)}, {cluster.name} has {cluster.device.kind}; another machine")
    if not 2 <= len(ranks) <= cluster.devices:
        raise InputError(
            f"{name}: has {len(ranks)} ranks, {cluster.name} {cluster.devices} devices; allowed: 2 to that many, "
            "started together"
        )
    # The last eight columns are time, two bandwidths and errors, out of place and in place.
    rows = {int(cells[0]): cells for line in _TABLE_ROW.findall(text) if len(cells := line.split()) >= 12}
    times = {size: (float(cells[-8]) * 1e-6, float(cells[-6]) * 1e9) for size, cells in sorted(rows.items()) if size}
    if not times:
        raise InputError(f"{name}: has no row of sizes and times; allowed: the whole output of a program of nccl-tests")
    told = re.search(r"Collective test starting: (\w+?)_perf", text)
    program = told[1] if told else next((each for each in _OPERATIONS if each in name.lower()), "")
    if program not in _OPERATIONS:
        raise InputError(
            f"{name}: does not say which operation it timed; allowed: name the file after one of "
            f"{', '.join(_OPERATIONS)}"
        )
    exchange = ExchangeTimes(
        operation=_OPERATIONS[program],
        tier="",
        ranks=len(ranks),
        on_node=len(ranks) // len(hosts),
        bytes=tuple(times),
        seconds=tuple(seconds for seconds, _ in times.values()),
    )
    return exchange, max(bandwidth for _, bandwidth in times.values())


def _measure_levels(cluster: Cluster, tables: Sequence[tuple[str, tuple[ExchangeTimes, float]]]) -> Cluster:
    tiers, errors = list(cluster.tiers), dict(cluster.errors)
    measured = []
    for name, (exchange, bus_bandwidth) in tables:
        hosts = exchange.ranks // exchange.on_node
        span = exchange.ranks if hosts == 1 else max(exchange.ranks, hosts * cluster.devices_per_node)
        place = next((at for at, tier in enumerate(tiers) if tier.devices >= span), None)
        if place is None:
            raise InputError(f"{name}: joins {hosts} nodes, more than the tiers of {cluster.name}")
        tier = tiers[place]
        measured.append(replace(exchange, tier=tier.name))
        if 1 < exchange.on_node < exchange.ranks:
            # Such groups use all links of a node at once: what they reach of them is all that their times say.
            share = bus_bandwidth / (tier.bandwidth * tier.links_per_node)
            tiers[place] = replace(tier, reached=min(1.0, max(share, 1e-6)))
    for place, tier in enumerate(tiers):
        own = [each for each in measured if each.tier == tier.name and not 1 < each.on_node < each.ranks]
        if any(each.operation in {"all_reduce", "all_gather", "reduce_scatter", "send"} for each in own):
            fit = fit_link(MeasuredLevel(name=tier.name, devices=tier.devices, exchanges=tuple(own)))
            alpha, beta = fit.values
            tiers[place] = replace(tier, alpha=float(alpha), bandwidth=float(1 / beta), reached=1.0)
            errors[tier.name] = fit.error
    sources = {"network": ", ".join(name for name, _ in tables)} if tables else {}
    return replace(
        cluster,
        tiers=tuple(tiers),
        measured=(*cluster.measured, *measured),
        errors=errors,
        conditions={**cluster.conditions, **sources},
    )
