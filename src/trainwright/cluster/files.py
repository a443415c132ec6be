"""Cluster files in TOML; every error names the key and its line.

Keys are the fields of the dataclasses; the levels of the network are listed under `tier`. `nodes` and
`devices_per_node` may be left out: the first level is then a node, and the last one the whole cluster.
"""

import dataclasses
import json
import math
import re
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

_BRACES = r"\{(?:[^{}]|\{[^{}]*\})*\}"
_NEEDED_OF_CLUSTER = ("name", "device")
_NEEDED_OF_DEVICE = ("kind", "memory_bytes", "flops", "memory_bandwidth")
_FILE_KEYS = {"tiers": "tier"}
# Figures beyond these bounds are almost certainly in other units, such as GB or microseconds.
_LEAST_BANDWIDTH, _MOST_ALPHA, _LEAST_MEMORY = 1e6, 0.1, 1e8


def read_cluster(kind: type[C], path: Path, *, force_units: bool = False) -> C:
    """Read a cluster, of the class `kind`; see `Cluster.load`."""
    text = read_text(path, "cluster file", allowed="a TOML file, or a preset's name")
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"cluster file {path}: is no TOML ({' '.join(str(error).split())})") from None
    return _Reader(path, text).read_cluster(kind, content, force_units=force_units)


def write_cluster(cluster: Any, path: Path) -> None:
    """Write a cluster; see `Cluster.save`."""
    content = {"schema": SCHEMA, **_fields_of(cluster, _NEEDED_OF_CLUSTER)}
    text = "".join(_toml_entry(key, value) for key, value in content.items())
    write_text(path, "cluster file", text)


class _Reader:
    """The content of one file, to be turned into dataclasses."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text

    def read_cluster(self, kind: type[C], content: Any, *, force_units: bool) -> C:
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
        if not force_units:
            self.check_units(found)
        return found  # type: ignore[no-any-return]

    def check_units(self, cluster: Any) -> None:
        # Every bandwidth, with the place of its key for the message.
        bandwidths: list[tuple[KeyPath, float]] = [
            *((("tier", place, "bandwidth"), tier.bandwidth) for place, tier in enumerate(cluster.tiers)),
            *((("device", name), getattr(cluster.device, name)) for name in ("memory_bandwidth", "host_bandwidth")),
            *((("storage", name), getattr(cluster.storage, name)) for name in ("node_read", "shared_read", "write")),
        ]
        for path, bandwidth in bandwidths:
            if 0 < bandwidth < _LEAST_BANDWIDTH:
                raise self.unit_error(path, bandwidth, f"at least {_LEAST_BANDWIDTH:g} bytes per second")
        for place, tier in enumerate(cluster.tiers):
            if tier.alpha > _MOST_ALPHA:
                raise self.unit_error(("tier", place, "alpha"), tier.alpha, f"at most {_MOST_ALPHA:g} seconds")
        if 0 < cluster.device.memory_bytes < _LEAST_MEMORY:
            path = ("device", "memory_bytes")
            raise self.unit_error(path, cluster.device.memory_bytes, f"at least {_LEAST_MEMORY:g} bytes")

    def unit_error(self, path: KeyPath, value: float, allowed: str) -> InputError:
        return self.key_error(
            path, f"got {value:g}; allowed: {allowed}; if it is meant, --force-units (force_units=True)"
        )

    def key_error(self, path: KeyPath, problem: str) -> InputError:
        line = _find_line(self.text, path)
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
        where = ", ".join(filter(None, [f"cluster file {self.path}", f"line {line}" if line else "", name]))
        return InputError(f"{where}: {problem}")


def _find_line(text: str, path: KeyPath) -> int | None:
    """Return the line of a key of a TOML text that has been parsed, or of the nearest key around it.

    The text is searched for one part of the path after the other, each within the table of the one before.
    """
    start, end, name, seen = 0, len(text), "", False
    for depth, part in enumerate(path):
        if isinstance(part, int):
            item = re.compile(rf"{_BRACES}|^\[\[\s*{re.escape(name)}", re.MULTILINE)
            starts = [found.start() for found in item.finditer(text, start, end)]
            if part >= len(starts):
                break
            start, end = starts[part], (*starts[part + 1 :], end)[0]
            continue
        name = part
        before = r"^\[*" if not depth else r"(?:^\s*|[{,.]\s*)"
        key = re.compile(rf"{before}[\"']?{re.escape(name)}[\"']?\s*[=:\].]", re.MULTILINE)
        found = key.search(text, start, end)
        if found is None:
            break
        start, seen = found.end() - len(found[0].lstrip()), True
        # An inline table ends with its line, another one before the next.
        if inline := re.compile(rf"\s*{_BRACES}").match(text, found.end()):
            end = inline.end()
        elif found[0].startswith("[") and not found[0].startswith("[["):
            end = (text + "\n[").index("\n[", start)
    return text.count("\n", 0, start) + 1 if seen else None


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
