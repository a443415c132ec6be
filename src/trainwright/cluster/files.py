"""Reads and writes cluster files in TOML; every error names the key.

Keys are the fields of the dataclasses; the levels of the network are listed under `tier`. `nodes` and
`devices_per_node` may be left out: the first level is then a node, and the last one the whole cluster.
"""

import dataclasses
import json
import math
import reprlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from trainwright.cluster.device import Device
from trainwright.cluster.network import NetworkLevel
from trainwright.errors import InputError
from trainwright.files import read_text, write_text
from trainwright.records import KeyPath, read_record, read_value
from trainwright.settings import settings_of

__all__ = ["read_cluster", "write_cluster"]

SCHEMA = 1
C = TypeVar("C")
"""The class `Cluster`: it imports this module, so it is passed in."""

_NEEDED_OF_CLUSTER = ("name", "device")
_NEEDED_OF_DEVICE = ("kind", "memory_bytes", "flops", "memory_bandwidth")
_FILE_KEYS = {"tiers": "tier"}
# Figures beyond these bounds are almost certainly in other units, such as GB or microseconds.
_LEAST_BANDWIDTH, _MOST_ALPHA, _LEAST_MEMORY = 1e6, 0.1, 1e8


def read_cluster(kind: type[C], path: Path) -> C:
    """Read a cluster, of the class `kind`; see `Cluster.load`."""
    text = read_text(path, "cluster file", allowed="a TOML file, or a preset's name")
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"cluster file {path}: is no TOML ({' '.join(str(error).split())})") from None
    return _Reader(path).read_cluster(kind, content)


def write_cluster(cluster: Any, path: Path) -> None:
    """Write a cluster; see `Cluster.save`."""
    content = {"schema": SCHEMA, **_fields_of(cluster, _NEEDED_OF_CLUSTER)}
    text = "".join(_toml_entry(key, value) for key, value in content.items())
    write_text(path, "cluster file", text)


class _Reader:
    """The content of one file, to be turned into dataclasses."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_cluster(self, kind: type[C], content: Any) -> C:
        if not isinstance(content, dict):
            raise self.key_error((), f"got {reprlib.repr(content)}; allowed: keys such as name, device and tier")
        content = dict(content)
        schema = content.pop("schema", SCHEMA)
        if schema != SCHEMA:
            raise self.key_error(
                ("schema",), f"got {reprlib.repr(schema)}; allowed: {SCHEMA}; a newer Trainwright reads newer files"
            )
        # The levels are read first: they say how many devices and nodes there are where the file does not.
        levels = read_value(tuple[NetworkLevel, ...], content.get("tier", []), self.key_error, ("tier",))
        content.setdefault("devices_per_node", levels[0].devices if levels else 1)
        node = read_value(int, content["devices_per_node"], self.key_error, ("devices_per_node",))
        content.setdefault("nodes", max(1, levels[-1].devices // max(1, node)) if levels else 1)
        needed = {kind: _NEEDED_OF_CLUSTER, Device: _NEEDED_OF_DEVICE}
        found: Any = read_record(kind, content, self.key_error, names=_FILE_KEYS, needed=needed)
        if not levels and found.devices > 1:
            raise self.key_error(("tier",), f"missing; allowed: tiers that join the cluster's {found.devices} devices")
        self.check_units(found)
        return found  # type: ignore[no-any-return]

    def check_units(self, cluster: Any) -> None:
        # Every bandwidth, with the place of its key for the message.
        bandwidths: list[tuple[KeyPath, float]] = [
            *((("tier", place, "bandwidth"), tier.bandwidth) for place, tier in enumerate(cluster.tiers)),
            *((("device", name), getattr(cluster.device, name)) for name in ("memory_bandwidth", "host_bandwidth")),
            *((("storage", name), getattr(cluster.storage, name)) for name in ("node_read", "shared_read", "write")),
        ]
        memory = cluster.device.memory_bytes
        rules = [
            (path, each, each >= _LEAST_BANDWIDTH, f"at least {_LEAST_BANDWIDTH:g} bytes per second")
            for path, each in bandwidths
        ]
        rules += [
            (("tier", place, "alpha"), tier.alpha, tier.alpha <= _MOST_ALPHA, f"at most {_MOST_ALPHA:g} seconds")
            for place, tier in enumerate(cluster.tiers)
        ]
        rules += [(("device", "memory_bytes"), memory, memory >= _LEAST_MEMORY, f"at least {_LEAST_MEMORY:g} bytes")]
        for path, value, fits, allowed in rules:
            if value and not fits:
                raise self.key_error(path, f"got {value:g}; allowed: {allowed}")

    def key_error(self, path: KeyPath, problem: str) -> InputError:
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
        return InputError(f"{', '.join(filter(None, [f'cluster file {self.path}', name]))}: {problem}")


def _fields_of(record: Any, needed: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a dataclass as mappings, lists and scalars, without the fields that have their default."""
    content = {}
    for field in settings_of(type(record)):
        value = getattr(record, field.name)
        if value != field.default or field.name in {"nodes", "devices_per_node", *needed}:
            content[_FILE_KEYS.get(field.name, field.name)] = _plain_value(value)
    return content


def _plain_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _fields_of(value, _NEEDED_OF_DEVICE if isinstance(value, Device) else ())
    if isinstance(value, tuple):
        return [_plain_value(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain_value(item) for key, item in value.items()}
    return value


def _toml_entry(key: str, value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        items = ",\n".join(f"    {_toml_value(item)}" for item in value)
        return f"{key} = [\n{items},\n]\n"
    return f"{key} = {_toml_value(value)}\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    return str(value)


def _toml_key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else _toml_value(key)
