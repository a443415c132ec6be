"""Seconds of a model's operations, read from a trace of `torch.profiler`: a step that was measured becomes a profile.

The trace (Chrome's JSON, as `export_chrome_trace` writes it, or that compressed as .gz) names operators as the
dispatcher calls them, which are those that a traced step records. Both are matched by name and, where the trace has
them (`record_shapes=True`), by shapes. An operator takes its own duration on a processor, and on a GPU that of the
kernels that it launched. Collectives are kept apart, since the oracle prices them by the cluster.
"""

import gzip
import json
import math
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils._pytree import tree_leaves

from trainwright.errors import ProfileError
from trainwright.files import read_json
from trainwright.model.trace.recorder import TensorShape, TracedOperation

__all__ = ["ProfilerTrace"]

_ALLOWED = "what torch.profiler's export_chrome_trace wrote of training steps, as .json or .json.gz"
_COLLECTIVE = re.compile(r"^(nccl|gloo|mpi|ucc|xccl|hccl):|nccl(Dev)?Kernel", re.IGNORECASE)
_ATTENTION = re.compile(r"_scaled_dot_product_.*?attention(?:_for_cpu|_overrideable)?(_backward)?$")
_BATCH_NORM = re.compile(r"(?:native|cudnn|miopen)_batch_norm(_backward)?$")
_LEAST_FOUND = 0.9
"""Of a model's floating-point operations, that a trace of it must have."""

_Key = tuple[str, tuple[Any, ...]]
_Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class ProfilerTrace:
    """What a trace says of training steps."""

    where: str
    calls: Mapping[_Key, Sequence[float]]
    """Seconds of the outermost calls of each operator outside the optimizer, in order."""
    with_shapes: bool
    steps: int
    """Steps that the profiler's schedule marks, 0 where it had none."""
    seconds: Mapping[str, float]
    """Of all steps together: "step", and of it "communication", "exposed" (communication that no operator or kernel ran
    beside) and "update"."""

    @classmethod
    def load(cls, path: str | Path, operations: Sequence[TracedOperation]) -> "ProfilerTrace":
        """Read a file, of which the operators that a traced step has count. Raises ProfileError for no such file."""
        where = f"profiler trace {str(path)!r}"
        events = [each for each in _read_events(path, where) if each.get("ph") == "X" and "dur" in each]
        calls = sorted(
            (event for event in events if event.get("cat") in {"cpu_op", "Operator"}),
            key=lambda event: (event["ts"], -event["dur"]),
        )
        if not any("::" in str(event["name"]) for event in calls):
            raise ProfileError(f"{where}: it has no operators; allowed: {_ALLOWED}, with ProfilerActivity.CPU")
        updates = _named(events, "user_annotation", "Optimizer.")
        kernels = [event for event in events if event.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}]
        collectives = [_span(event) for event in kernels or events if _COLLECTIVE.search(str(event["name"]))]
        compute = [_span(event) for event in kernels or calls if not _COLLECTIVE.search(str(event["name"]))]
        steps = _named(events, "user_annotation", "ProfilerStep#")
        whole = steps or [(min(each["ts"] for each in calls), max(each["ts"] + each["dur"] for each in calls))]
        shaped = any("Input Dims" in event.get("args", {}) for event in calls)
        seconds = {
            "step": _length(whole),
            "communication": _length(collectives),
            "exposed": _length([*compute, *collectives]) - _length(compute),
            # On a GPU the host is done with the optimizer's step before its kernels are.
            "update": _length(_named(events, "gpu_user_annotation", "Optimizer.") or updates),
        }
        return cls(
            where=where,
            calls=_outermost_calls(calls, {_operator(each) for each in operations}, kernels, updates, shaped),
            with_shapes=shaped,
            steps=len(steps),
            seconds={name: 1e-6 * each for name, each in seconds.items()},
        )

    def operation_seconds(
        self, operations: Sequence[TracedOperation], end: int
    ) -> tuple[dict[int, float], float, dict[str, float]]:
        """Return seconds of the first `end` operations, those of a pass that nothing explains, and those of a step.

        Raises ProfileError where the trace is of another model or batch.
        """
        places: dict[_Key, list[int]] = defaultdict(list)
        for place, operation in enumerate(operations[:end]):
            if not operation.is_view:
                places[_operator(operation), _shapes(operation) if self.with_shapes else ()].append(place)
        work = {key: math.fsum(operations[place].flops for place in found) for key, found in places.items()}
        ratios = {key: len(self.calls.get(key, ())) / len(places[key]) for key, flops in work.items() if flops}
        # Most products run once a pass, so that their numbers say how many passes the trace has.
        passes = Counter(sorted(ratio for ratio in ratios.values() if ratio >= 1)).most_common(1)
        number = passes[0][0] if passes else 1.0
        # Recomputation repeats products; without shapes these could be another model's.
        known = [key for key, ratio in ratios.items() if (ratio >= 1 if self.with_shapes else ratio == number)]
        found = math.fsum(work[key] for key in known) / max(1.0, math.fsum(work.values()))
        if found < _LEAST_FOUND or number % max(1, self.steps):
            shapes = "" if self.with_shapes else "; with record_shapes=True more is recognised"
            raise ProfileError(
                f"{self.where}: has {100 * found:.0f} % of the work of this model's operators on this sample; allowed: "
                f"a trace of whole steps of this model, not compiled, on batches like the sample{shapes}"
            )
        seconds = {}
        for key, same in places.items():
            times = self.calls.get(key, ())
            # In whole passes the n-th call of each is the n-th operation; else all take the mean. What ran again is no
            # part of it, and what did not run in each pass takes less.
            whole = len(times) % len(same) == 0
            for rank, place in enumerate(same):
                own, runs = (times[rank :: len(same)], number) if whole else (times, number * len(same))
                seconds[place] = math.fsum(own) / max(len(own), runs)
        # Whole steps, less their optimizer, exchanges and all calls of these operators, are the framework's.
        explained = math.fsum(math.fsum(self.calls[key]) for key in places if key in self.calls)
        others = self.seconds["step"] - explained - self.seconds["update"] - self.seconds["exposed"]
        steps = {name: total / (self.steps or number) for name, total in self.seconds.items()}
        return seconds, max(0.0, others) / number, steps


def _read_events(path: str | Path, where: str) -> list[dict[str, Any]]:
    if Path(path).suffix == ".gz":
        try:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                content = json.load(file)
        except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
            raise ProfileError(f"{where}: it cannot be read ({error}); allowed: {_ALLOWED}") from None
    else:
        content = read_json(path, "profiler trace", allowed=_ALLOWED, error=ProfileError)
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ProfileError(f"{where}: it has no traceEvents; allowed: {_ALLOWED}")
    return events


def _named(events: Sequence[dict[str, Any]], kind: str, beginning: str) -> list[_Span]:
    return [_span(each) for each in events if each.get("cat") == kind and str(each["name"]).startswith(beginning)]


def _outermost_calls(
    calls: Sequence[dict[str, Any]],
    wanted: set[str],
    kernels: Sequence[dict[str, Any]],
    updates: Sequence[_Span],
    shaped: bool,
) -> dict[_Key, list[float]]:
    """Return the seconds of wanted operators that no other wanted operator of their thread called."""
    found: dict[_Key, list[list[float]]] = defaultdict(list)
    owner: dict[Any, list[float]] = {}
    until: dict[Any, tuple[float, list[float]]] = {}
    for event in calls:
        start, end = _span(event)
        inside, seconds = until.get(event["tid"], (-math.inf, []))
        arguments = event.get("args", {})
        if start >= inside:
            name = _canonical(str(event["name"]))
            if name not in wanted or any(first <= start < last for first, last in updates):
                continue
            seconds = [0.0 if kernels else 1e-6 * (end - start)]
            until[event["tid"]] = end, seconds
            dims = _tensor_dims(arguments.get("Input Dims", ())) if shaped else ()
            found[name, dims].append(seconds)
        # A kernel has the number of the operator that launched it, itself or below.
        owner[arguments.get("External id")] = seconds
    for kernel in kernels:
        if (call := owner.get(kernel.get("args", {}).get("External id"))) is not None:
            call[0] += 1e-6 * kernel["dur"]
    return {key: [seconds for (seconds,) in times] for key, times in found.items()}


def _canonical(name: str) -> str:
    """Return an operator's name; kernels of attention and batch norm have one name on all devices."""
    space, _, base = name.rpartition("::")
    base = _ATTENTION.sub(r"attention\1", _BATCH_NORM.sub(r"batch_norm\1", base))
    return base if space == "aten" else f"{space}::{base}"


def _operator(operation: TracedOperation) -> str:
    space, base = str(operation.func).split(".")[:2]
    return _canonical(f"{space}::{base}")


def _shapes(operation: TracedOperation) -> tuple[Any, ...]:
    shapes = [leaf.shape for leaf in tree_leaves(operation.arguments) if isinstance(leaf, TensorShape)]
    return tuple(shape for shape in shapes if shape)[:2]


def _tensor_dims(dims: Sequence[Any]) -> tuple[Any, ...]:
    """Return the shapes of the first two tensors of a call's arguments, of which some are lists of tensors."""
    flat: list[Any] = []
    for entry in dims:
        flat += entry if entry and isinstance(entry[0], list) else [entry]
    return tuple(tuple(shape) for shape in flat if shape)[:2]


def _span(event: Mapping[str, Any]) -> _Span:
    return event["ts"], event["ts"] + event["dur"]


def _length(spans: Sequence[_Span]) -> float:
    """Return how long at least one of the spans was under way."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
