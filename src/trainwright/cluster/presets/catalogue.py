"""Presets: machines by name, as their vendors' data sheets describe them, and this machine, which is measured.

The sheets are the TOML files next to this module. Peaks are of dense operations (a sheet's figure with sparsity
halved). Bandwidths are of one direction: inside a node the sum of a device's links, outside one adapter. Latencies are
those that ParaDL used on ABCI, also for the machines that publish none. Calibrate before relying on any of them.

A preset is a cluster file with two additions: `most_nodes`, and levels without `devices`, which join all nodes.
"""

import tomllib
from pathlib import Path
from typing import Any, TypeVar

from trainwright.cluster.device import Device
from trainwright.cluster.network import NetworkLevel
from trainwright.cluster.presets.laptop import load_or_measure_laptop
from trainwright.errors import InputError, closest
from trainwright.validators import check, integer

__all__ = ["PRESETS", "preset_cluster"]

C = TypeVar("C")

_FILES = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
_LAPTOP = "laptop"
PRESETS = tuple(sorted((*_FILES, _LAPTOP)))


def preset_cluster(kind: type[C], name: str, *, nodes: int | None = None) -> C:
    """Return a preset, of the class `kind`; see `Cluster.preset`."""
    if name not in PRESETS:
        raise InputError(f"cluster: got {name!r}; allowed: {', '.join(PRESETS)}, or a file{closest(name, PRESETS)}")
    # The laptop is a single node and has no sheet.
    content = {"nodes": 1, "most_nodes": 1} if name == _LAPTOP else _read_preset(name)
    wanted = content["nodes"] if nodes is None else nodes
    check(wanted, integer(minimum=1, maximum=content.pop("most_nodes")), f"nodes of {name}")
    return load_or_measure_laptop(kind) if name == _LAPTOP else kind(**_fields_of(content, wanted))


def _read_preset(name: str) -> dict[str, Any]:
    return tomllib.loads(_FILES[name].read_text(encoding="utf-8"))


def _fields_of(content: dict[str, Any], nodes: int) -> dict[str, Any]:
    """Return the fields of a cluster of so many nodes."""
    levels = [
        NetworkLevel(**{"devices": nodes * content["devices_per_node"], **level})
        for level in content.pop("tier", ())
        # A single node needs no level that joins all nodes.
        if "devices" in level or nodes > 1
    ]
    return {**content, "nodes": nodes, "device": Device(**content["device"]), "tiers": tuple(levels)}
