"""A program's graph as a network: its nodes, checked one by one, run in turn by torch's operators.

Symbolic expressions, ranges, guards and the other metadata of the file are not read: each is text that torch would
evaluate, and none is needed to compute.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from trainwright.ensemble.export.operators import NeedsTrust, arguments_of, find_check, find_operator
from trainwright.ensemble.export.program_archive import Archive, find_dtype, read_size
from trainwright.errors import ExportError

__all__ = ["ProgramNetwork"]

_NODES = 50_000
_ROW_BYTES = 1 << 30  # of what one node computes for a batch of one row
_LARGEST_SIZE = 1 << 31
_FLOATS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}
_STRIDED = 7
_FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d, 4: torch.preserve_format}


@dataclass(frozen=True, slots=True)
class _Value:
    """A value that an earlier node computed, by its place."""

    place: int


class _Device:
    """The device of the input, wherever the program was exported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    function: Callable[..., Any]
    check: Callable[..., None] | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    puts: int | tuple[int, ...] | None  # where its answer, or each part of it, goes
    frees: tuple[int, ...]  # places that no later step reads


class ProgramNetwork(torch.nn.Module):
    """The network of a `model.pt2`: one tensor [rows, ...] in, one out."""

    def __init__(self, archive: Archive) -> None:
        """Check the graph and try it on shapes alone; raises ExportError or `NeedsTrust`, and runs nothing."""
        super().__init__()
        reader = _Reader(archive)
        self._steps, self._input, self._answer = reader.steps, reader.input, reader.answer
        self._weight_names = {}
        for place, weight in reader.weights.items():
            name = f"w{place}"
            if weight.is_param:
                self.register_parameter(name, torch.nn.Parameter(weight.tensor, requires_grad=False))
            else:
                self.register_buffer(name, weight.tensor)
            self._weight_names[place] = name
        # Shapes are computed on the meta device: it allocates nothing, however large the graph claims to be.
        self._try_shapes(reader.row_shape, reader.row_dtype)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output for a batch."""
        weights = {place: getattr(self, name) for place, name in self._weight_names.items()}
        return self._run_steps(x, weights)

    def _run_steps(
        self, x: torch.Tensor, weights: Mapping[int, torch.Tensor], most_bytes: int | None = None
    ) -> torch.Tensor:
        values: dict[int, Any] = {**weights, self._input: x}
        device = x.device
        for step in self._steps:
            args = [_resolve_values(one, values, device) for one in step.args]
            kwargs = {name: _resolve_values(one, values, device) for name, one in step.kwargs.items()}
            if step.check is not None:
                step.check(*args, **kwargs)
            found = step.function(*args, **kwargs)
            if isinstance(step.puts, int):
                values[step.puts] = found
            elif step.puts is not None:
                values.update(zip(step.puts, found, strict=True))
            if most_bytes is not None and _count_bytes(found) > most_bytes:
                size = f"{_count_bytes(found) >> 20:,} MiB"
                raise ExportError(f"computes {size} at once for one row; allowed: {most_bytes >> 20:,} MiB")
            # Values that no later step reads are dropped at once, which bounds memory as in the original
            # network.
            for place in step.frees:
                values.pop(place, None)
        answer: torch.Tensor = values[self._answer]
        return answer

    def _try_shapes(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Run on tensors without memory, which shows what does not fit together and what would grow too large."""
        with torch.no_grad():
            weights = {
                p: torch.empty_like(getattr(self, name), device="meta") for p, name in self._weight_names.items()
            }
            found = self._run_steps(torch.empty(*shape, dtype=dtype, device="meta"), weights, _ROW_BYTES)
        if not isinstance(found, torch.Tensor):
            raise ExportError(f"answers with {type(found).__name__}; allowed: a tensor")


class _Reader:
    """The steps of a graph, with names turned into places."""

    def __init__(self, archive: Archive) -> None:
        module = archive.program["graph_module"]
        graph, signature = module["graph"], module["signature"]
        self.places: dict[str, int] = {}
        self.weights = {}
        inputs = [one["as_tensor"]["name"] for one in graph["inputs"]]
        specs = signature["input_specs"]
        users = []
        for name, content in zip(inputs, specs, strict=True):
            ((kind, spec),) = content.items()
            place = self._new_place(name)
            if kind == "user_input" and spec["arg"]["as_tensor"]["name"] == name:
                users.append((name, place))
            elif kind in _SOURCES and spec["arg"]["name"] == name:
                source, key = _SOURCES[kind]
                stored = archive.constants if source == "constants" else archive.weights
                fallback = archive.constants  # buffers that a network does not keep in its state
                self.weights[place] = stored[spec[key]] if spec[key] in stored else fallback[spec[key]]
            else:
                raise NeedsTrust(f"takes an input that is {kind!r}")
        # All other inputs are weights, buffers and constants from the archive.
        if len(users) != 1:
            raise ExportError(f"takes {len(users)} inputs; allowed: one")
        user, self.input = users[0]
        self.row_shape, self.row_dtype = _row_of(graph["tensor_values"][user])
        outputs = signature["output_specs"]
        if len(outputs) != 1 or "user_output" not in outputs[0] or len(graph["outputs"]) != 1:
            raise NeedsTrust("answers with more than one tensor, or changes its own weights")
        nodes = graph["nodes"]
        if len(nodes) > _NODES:
            raise ExportError(f"has {len(nodes):,} nodes; allowed: {_NODES:,}")
        # Each node is checked as it is read; nothing has run so far.
        steps = [self._read_step(node) for node in nodes]
        self.answer = self.places[graph["outputs"][0]["as_tensor"]["name"]]
        self.steps = _with_frees(steps, {self.answer})

    def _new_place(self, name: str) -> int:
        if name in self.places:
            raise ExportError(f"computes {name[:40]!r} twice; allowed: each value once")
        return self.places.setdefault(name, len(self.places))

    def _read_step(self, node: Mapping[str, Any]) -> _Step:
        target = node["target"]
        function = find_operator(target)
        options = {one["name"]: self._read_argument(one["arg"]) for one in node["inputs"]}
        schema = getattr(function, "_schema", None)
        args: list[Any] = []
        kwargs = {}
        if schema is None:  # arithmetic of sizes, by position
            args = [self._read_argument(one["arg"]) for one in node["inputs"]]
        else:
            known = [one.name for one in schema.arguments]
            if len(options) != len(node["inputs"]) or not set(options) <= set(known):
                raise ExportError(f"gives {target!r} arguments that it does not have")
            arguments_of(target, options)
            # An operator that makes a tensor makes it on the device of the input, not where the program
            # was exported.
            makes = "device" in known and not any("Tensor" in str(one.type) for one in schema.arguments)
            if makes:
                options["device"] = _Device
            if target == _ASSERTS:  # about where the program was exported, not where it runs
                options.pop("device", None)
            for one in schema.arguments:
                # By position only while no argument before it was left out.
                if one.name in options and not one.kwarg_only and len(args) == known.index(one.name):
                    args.append(options[one.name])
                elif one.name in options:
                    kwargs[one.name] = options[one.name]
        return _Step(
            function=function,
            check=find_check(target),
            args=tuple(args),
            kwargs=kwargs,
            puts=self._read_outputs(node["outputs"]),
            frees=(),
        )

    def _read_outputs(self, outputs: Sequence[Mapping[str, Any]]) -> int | tuple[int, ...] | None:
        if not outputs or (len(outputs) == 1 and "as_none" in outputs[0]):
            return None
        if len(outputs) == 1 and "as_tensors" in outputs[0]:
            return tuple(self._new_place(one["name"]) for one in outputs[0]["as_tensors"])
        places = []
        for output in outputs:
            ((kind, content),) = output.items()
            if kind not in _ANSWERS:
                raise NeedsTrust(f"computes a value that is {kind!r}")
            places.append(self._new_place(content[_ANSWERS[kind]]))
        return places[0] if len(places) == 1 else tuple(places)

    def _read_argument(self, content: Mapping[str, Any]) -> Any:
        ((kind, value),) = content.items()
        read = _PLAIN.get(kind)
        if read is not None:
            return read(value)
        if kind == "as_tensor":
            return _Value(self.places[value["name"]])
        if kind == "as_tensors":
            return [_Value(self.places[one["name"]]) for one in value]
        if kind in ("as_optional_tensor", "as_sym_int", "as_sym_float", "as_sym_bool"):
            return self._read_either(value)
        if kind in ("as_optional_tensors", "as_sym_ints", "as_sym_floats", "as_sym_bools"):
            return [self._read_either(one) for one in value]
        raise NeedsTrust(f"uses an argument that is {kind!r}")

    def _read_either(self, content: Mapping[str, Any]) -> Any:
        ((kind, value),) = content.items()
        return _Value(self.places[value]) if kind == "as_name" else self._read_argument(content)


_ASSERTS = "torch.ops.aten._assert_tensor_metadata.default"
_SOURCES = {
    "parameter": ("weights", "parameter_name"),
    "buffer": ("weights", "buffer_name"),
    "tensor_constant": ("constants", "tensor_constant_name"),
}
_ANSWERS = {"as_tensor": "name", "as_sym_int": "as_name", "as_sym_float": "as_name", "as_sym_bool": "as_name"}


def _read_float(value: Any) -> float:
    return _FLOATS[value] if isinstance(value, str) else float(value)


def _read_integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise ExportError(f"uses the number {str(value)[:40]}; allowed: whole numbers of 64 bits")
    return value


def _read_layout(value: Any) -> torch.layout:
    if value != _STRIDED:
        raise NeedsTrust(f"uses the layout {value!r}")
    return torch.strided


_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "as_none": lambda _: None,
    "as_int": _read_integer,
    "as_ints": lambda values: tuple(_read_integer(one) for one in values),
    "as_float": _read_float,
    "as_floats": lambda values: tuple(_read_float(one) for one in values),
    "as_bool": lambda value: value is True,
    "as_bools": lambda values: tuple(one is True for one in values),
    "as_string": str,
    "as_scalar_type": find_dtype,
    "as_memory_format": lambda value: _FORMATS[value],
    "as_layout": _read_layout,
    "as_device": lambda _: _Device,
}


def _row_of(meta: Mapping[str, Any]) -> tuple[list[int], torch.dtype]:
    """Return the shape of an input of one row, or of as many as the program is bound to, and its type."""
    first, *rest = meta["sizes"]
    if any("as_int" not in one for one in rest):
        raise NeedsTrust("takes rows of any size")
    rows = read_size(first["as_int"], _LARGEST_SIZE) if "as_int" in first else 1
    shape = [rows, *(read_size(one["as_int"], _LARGEST_SIZE) for one in rest)]
    return shape, find_dtype(meta["dtype"])


def _with_frees(steps: Sequence[_Step], stay: set[int]) -> tuple[_Step, ...]:
    """Return the steps, each with the places that it is the last to use."""
    # Backwards: the first use that is met is the last one of the run.
    done, seen = [], set(stay)
    for step in reversed(steps):
        used = set(_find_places((step.args, tuple(step.kwargs.values()))))
        used |= {step.puts} if isinstance(step.puts, int) else set(step.puts or ())
        fresh = used - seen
        seen |= fresh
        done.append(replace(step, frees=tuple(sorted(fresh))))
    return tuple(reversed(done))


def _find_places(content: Any) -> Iterable[int]:
    if isinstance(content, _Value):
        yield content.place
    elif isinstance(content, list | tuple):
        for one in content:
            yield from _find_places(one)


def _resolve_values(content: Any, values: Mapping[int, Any], device: torch.device) -> Any:
    if isinstance(content, _Value):
        return values[content.place]
    if isinstance(content, list):
        return [_resolve_values(one, values, device) for one in content]
    return device if content is _Device else content


def _count_bytes(found: Any) -> int:
    if isinstance(found, torch.Tensor):
        return found.numel() * found.element_size()
    return sum(_count_bytes(one) for one in found) if isinstance(found, list | tuple) else 0
