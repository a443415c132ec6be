"""Chains from PipeDream's measured layer graphs (Narayanan et al., SOSP 2019; MIT licence): text files of nodes, edges.

A node line reads `nodeN -- what -- forward_compute_time=ms, backward_compute_time=ms, activation_size=bytes,
parameter_size=bytes`, an edge line, indented, `nodeA -- nodeB`. Input nodes are dropped with their times, which are
those of loading data; their bytes become the chain's input.

Nodes are taken in the order of their numbers as far as edges allow, and the order is cut wherever little more than one
value is alive: the others together at most `tolerance` of the largest, all of them counted as the stage's output. The
files do not say what autograd saves: `saved_multiple` times the outputs of a stage's nodes, but for views.
The temporaries of a stage of several nodes are what its inner values need (in a forward without gradients) and its
largest inner value (in the backward), the gradient of that value.

A stage of several nodes may also drop inner values and make them again in its backward: the options of a stage drop
what is cheapest per byte first, up to where the curve of seconds over bytes bends most. A group of dropped values that
hang together is made when the backward first needs one of them, from values that are saved, and counts whole until it
has passed the group's first node.
"""

import heapq
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

from trainwright.errors import ChainError
from trainwright.files import read_text
from trainwright.model.chain import Chain, Option, Stage

__all__ = ["chain_of_graph", "read_graph"]

_NODE = re.compile(
    r"node(?P<number>\d+) -- (?P<what>.*) -- forward_compute_time=(?P<forward>[^,]*), "
    r"backward_compute_time=(?P<backward>[^,]*), activation_size=(?P<size>\[[^\]]*\]|[^,]*), "
    r"parameter_size=(?P<parameters>\S+)"
)
_OPTIONS = 3
_EDGE = re.compile(r"\s+node(\d+) -- node(\d+)\s*")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Node:
    what: str
    forward_seconds: float
    backward_seconds: float
    size: int
    parameter_bytes: int

    @property
    def view(self) -> bool:
        return self.what.startswith("__getitem__")


def read_graph(path: str | Path, *, saved_multiple: float = 1.0, tolerance: float = 0.1) -> Chain:
    """Read a PipeDream graph file as a chain; the module's docstring says how it is cut and what is assumed."""
    allowed = "a PipeDream graph (.txt), or a chain file, whose name ends in .json"
    lines = read_text(path, "graph file", allowed=allowed, error=ChainError).splitlines()
    return chain_of_graph(lines, name=Path(path).stem, saved_multiple=saved_multiple, tolerance=tolerance)


def chain_of_graph(
    lines: Iterable[str], *, name: str = "", saved_multiple: float = 1.0, tolerance: float = 0.1
) -> Chain:
    """Return the chain of a PipeDream graph given as lines; raise ChainError that names the line that cannot be read.

    `saved_multiple` >= 1 is a number that the caller assumes and should state with the results.
    """
    if not saved_multiple >= 1:
        raise ChainError(f"graph, saved_multiple: got {saved_multiple!r}; allowed: a number >= 1")
    nodes, edges = _parse(lines)
    inputs = {number for number, node in nodes.items() if node.what.startswith("Input")}
    after: dict[int, list[int]] = {number: [] for number in nodes if number not in inputs}
    for start, end in edges:
        if start not in inputs and end not in inputs:
            after[start].append(end)
    order = _sorted(after)
    if not order:
        raise ChainError("graph: got no node beside inputs; allowed: at least one")
    place = {number: index for index, number in enumerate(order)}
    last = [max((place[end] for end in after[number]), default=index) for index, number in enumerate(order)]
    stages, begin = [], 0
    for index in range(len(order)):
        crossing = [nodes[order[each]].size for each in range(index + 1) if last[each] > index]
        if index + 1 < len(order) and (
            sum(crossing) > (1 + tolerance) * max(crossing, default=0) or nodes[order[index + 1]].view
        ):
            continue  # a view stays with the node whose storage it shows
        older = sum(nodes[order[each]].size for each in range(begin) if last[each] > index)
        inside = [nodes[number] for number in order[begin : index + 1]]
        output = sum(crossing) if index + 1 < len(order) else inside[-1].size
        inner = {number: each for each, number in enumerate(order[begin : index + 1])}
        readers = [[inner[end] for end in after[number] if end in inner] for number in inner]
        ends = last[begin : index + 1]
        stage = _stage(inside, begin, ends, output=output, older=older, saved_multiple=saved_multiple)
        free = [each for each in range(len(inside) - 1) if ends[each] <= index and not inside[each].view]
        stages.append(replace(stage, options=_options(stage, inside, readers, free, saved_multiple)))
        begin = index + 1
    return Chain(stages=tuple(stages), input_bytes=sum(nodes[number].size for number in inputs), name=name)


def _stage(
    inside: list[_Node], begin: int, last: list[int], *, output: int, older: int, saved_multiple: float
) -> Stage:
    """Merge nodes that stand at `begin` and after; `older` bytes pass by them into the output."""
    saved = older + int(saved_multiple * sum(node.size for node in inside if not node.view))
    alive = peak = 0
    for index, node in enumerate(inside):
        alive += node.size
        peak = max(peak, alive)
        gone = [each for each in range(index + 1) if last[each] == begin + index and each < len(inside) - 1]
        alive -= sum(inside[each].size for each in gone)
    several = len(inside) > 1
    return Stage(
        name=inside[0].what.split("(")[0] + (f" .. {inside[-1].what.split('(')[0]}" if several else ""),
        forward_seconds=sum(node.forward_seconds for node in inside),
        backward_seconds=sum(node.backward_seconds for node in inside),
        output_bytes=output,
        saved_bytes=max(saved, output),
        backward_temporary_bytes=max((node.size for node in inside[:-1]), default=0),
        no_grad_forward_temporary_bytes=max(0, peak - output + older),
        parameter_bytes=sum(node.parameter_bytes for node in inside),
    )


def _options(
    stage: Stage, inside: list[_Node], readers: list[list[int]], free: list[int], saved_multiple: float
) -> tuple[Option, ...]:
    """Return ways to run a stage that drop some of its inner values, those that are `free` to go.

    `readers[i]` are the nodes of the stage that read i. Where a view is read, what it shows is kept.
    """
    free = [each for each in free if inside[each].size and not any(inside[end].view for end in readers[each])]
    free.sort(key=lambda each: (inside[each].forward_seconds / inside[each].size, each))
    gone = list(accumulate((inside[each].size for each in free), initial=0))
    spent = list(accumulate((inside[each].forward_seconds for each in free), initial=0.0))
    chosen = [0, len(free)]  # all of them: as good as dropping the whole stage
    while len(chosen) < min(_OPTIONS + 2, len(free) + 1):
        saving = {
            count: spent[low] + (spent[high] - spent[low]) * (gone[count] - gone[low]) / (gone[high] - gone[low])
            - spent[count]
            for low, high in pairwise(chosen)
            for count in range(low + 1, high)
        }  # fmt: skip
        chosen = sorted([*chosen, max(saving, key=lambda count: saving[count])])
    found = []
    for count in chosen[1:-1]:
        dropped = set(free[:count])
        size = {each: int(saved_multiple * inside[each].size) for each in dropped}
        found.append(
            Option(
                name=f"drop {count} of {len(inside)}",
                forward_seconds=stage.forward_seconds,
                backward_seconds=stage.backward_seconds + sum(inside[each].forward_seconds for each in dropped),
                saved_bytes=max(stage.output_bytes, stage.saved_bytes - sum(size.values())),
                forward_temporary_bytes=stage.no_grad_temporary_bytes,
                backward_temporary_bytes=stage.backward_temporary_bytes + _again(size, readers),
            )
        )
    return tuple(found)


def _again(size: dict[int, int], readers: list[list[int]]) -> int:
    """Return the most bytes of dropped values that are alive at once in a backward that makes them again."""
    first = {each: each for each in size}  # of its group
    for each in sorted(size, reverse=True):
        for end in readers[each]:
            if end in size:
                one, other = first[each], first[end]
                first = {node: min(one, other) if group in {one, other} else group for node, group in first.items()}
    spans: dict[int, tuple[int, int]] = {}  # of each group: bytes, last reader
    for each, group in first.items():
        held, last = spans.get(group, (0, 0))
        spans[group] = held + size[each], max(last, each, *readers[each])
    return max(sum(held for group, (held, last) in spans.items() if group <= at <= last) for at in first)


def _parse(lines: Iterable[str]) -> tuple[dict[int, _Node], list[tuple[int, int]]]:
    nodes: dict[int, _Node] = {}
    edges = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if edge := _EDGE.fullmatch(line):
            edges.append((int(edge[1]), int(edge[2])))
            continue
        found = _NODE.fullmatch(line.strip())
        if found is None:
            raise ChainError(f"graph, line {number}: got {line.strip()[:60]!r}; allowed: a node or an indented edge")
        try:
            size = sum(float(part) for part in found["size"].strip("[]").split(";"))
            nodes[int(found["number"])] = _Node(
                what=found["what"],
                forward_seconds=float(found["forward"]) / 1000,
                backward_seconds=float(found["backward"]) / 1000,
                size=int(size),
                parameter_bytes=int(float(found["parameters"])),
            )
        except ValueError as error:
            raise ChainError(f"graph, line {number}: got a field that is no number ({error})") from None
    for edge_of in edges:
        for end in edge_of:
            if end not in nodes:
                raise ChainError(f"graph: got an edge of node{end}; allowed: nodes that a line describes")
    return nodes, edges


def _sorted(after: dict[int, list[int]]) -> list[int]:
    """Order nodes so that edges go forward, lower numbers first where there is a choice."""
    waiting = dict.fromkeys(after, 0)
    for ends in after.values():
        for end in ends:
            waiting[end] += 1
    ready = [number for number, count in waiting.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        number = heapq.heappop(ready)
        order.append(number)
        for end in after[number]:
            waiting[end] -= 1
            if not waiting[end]:
                heapq.heappush(ready, end)
    if len(order) < len(after):
        stuck = min(set(after) - set(order))
        raise ChainError(f"graph: got a circle through node{stuck}; allowed: edges that go from earlier to later")
    return order
