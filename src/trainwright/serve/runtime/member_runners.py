"""The members of a unit computed in one process: in turn, or fused where that was shown to give the same answers.

What is faster is for a measurement to say, not for this file: `vmap` beats the loop for many small networks and loses
to it for convolutions. A fused kind whose answers differ from the loop's is refused when it starts.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trainwright.ensemble.library.member import Member, read_member
from trainwright.ensemble.library.networks import apply_link, shape_outputs
from trainwright.ensemble.library.weights import build_network
from trainwright.ensemble.metrics import Array
from trainwright.errors import ServeError

if TYPE_CHECKING:
    import torch

__all__ = ["CudaGraph", "CudaStreams", "Loop", "Runner", "Vmap", "runner_of"]

_TOLERANCE = 1e-5  # how far a fused kind's predictions may lie from the loop's


class Runner(Protocol):
    """The members of a unit, loaded on their device."""

    def __call__(self, x: Array, members: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """Yield (k, predictions [N, ...] in float64) for each of these members of the unit, as soon as it is done."""


def runner_of(told: Mapping[str, Any]) -> Runner:
    """Return the runner of what a front tells a worker: members by folder and digests, device, threads, kind.

    Raises ServeError, in one sentence, for a kind that the device or these members do not allow.
    """
    import torch

    torch.set_num_threads(told["threads"])
    members = [
        read_member(Path(one["folder"]), one["digests"], trial=one["trial"], trust=one.get("trust", False))
        for one in told["members"]
    ]
    kind, device = told["kind"], told["device"]
    if kind in {"streams", "cuda_graph"} and not device.startswith("cuda"):
        raise ServeError(f"kind: got {kind!r} on {device!r}; allowed: a cuda device; use 'loop' or 'vmap' here")
    loop = Loop(members, device=device)
    if kind in {"process", "loop"}:
        return loop
    draws = np.random.default_rng(0).normal(size=(told["batch"], *told["input_shape"]))
    x = np.asarray(draws if np.dtype(told["input_dtype"]).kind == "f" else np.zeros_like(draws), told["input_dtype"])
    fused: Runner
    if kind == "vmap":
        fused = Vmap(loop)
    elif kind == "streams":
        fused = CudaStreams(loop)
    else:
        fused = CudaGraph(loop, x)
    _refuse_difference(kind, fused, loop, x)
    return fused


class Loop:
    """The members one after the other: the reference of all other kinds."""

    def __init__(self, members: Sequence[Member], *, device: str) -> None:
        self.members = tuple(members)
        self.device = device
        self.networks = [build_network(member).to(device) for member in members]

    def __call__(self, x: Array, members: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """Yield (k, predictions [N, ...] in float64) for each of these members, as soon as it is done."""
        import torch

        given = torch.from_numpy(x).to(self.device)
        # An accelerator works while this thread goes on, so there all are started before the first is waited for.
        ahead = list(members) if self.device != "cpu" else []
        begun = {k: self.raw(k, given) for k in ahead}
        for k in members:
            yield k, self.told(k, begun[k] if k in begun else self.raw(k, given))

    def raw(self, k: int, given: "torch.Tensor") -> "torch.Tensor":
        """Return what network k says to a batch on its device."""
        import torch

        with torch.inference_mode():
            out: torch.Tensor = self.networks[k](_cast_input(given, self.networks[k]))
            return out

    def told(self, k: int, output: "torch.Tensor") -> Array:
        """Return a network's output as predictions in float64, in this process's memory."""
        member = self.members[k]
        return shape_outputs(apply_link(output, member.link).cpu().double().numpy(), member.output)


class Vmap:
    """Members of equal structure as one network with one more dimension (`torch.func.stack_module_state`).

    All are computed whichever are asked for. Raises ServeError if their structures differ, or are of unlike classes.
    """

    def __init__(self, loop: Loop) -> None:
        import torch

        self._loop = loop
        # One structure means the same class, the same modules, and tensors of equal shape.
        structures = [
            (type(one), str(one), {name: (each.shape, each.dtype) for name, each in one.state_dict().items()})
            for one in loop.networks
        ]
        if any(one != structures[0] for one in structures):
            trials = ", ".join(str(member.trial) for member in loop.members)
            raise ServeError(
                f"kind: got 'vmap' for trials {trials}, whose networks differ; allowed: networks of one structure; use "
                "'loop'"
            )
        try:
            self._state = torch.func.stack_module_state(loop.networks)
        except RuntimeError as error:
            first = str(error).splitlines()[0]
            raise ServeError(f"kind: got 'vmap', which these networks do not allow ({first}); use 'loop'") from error
        base = copy.deepcopy(loop.networks[0]).to("meta")

        def one(parameters: Any, buffers: Any, x: "torch.Tensor") -> Any:
            return torch.func.functional_call(base, (parameters, buffers), (x,))

        self._run_all = torch.func.vmap(one, in_dims=(0, 0, None), randomness="error")

    def __call__(self, x: Array, members: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """Yield (k, predictions [N, ...] in float64) for each of these members."""
        import torch

        given = _cast_input(torch.from_numpy(x).to(self._loop.device), self._loop.networks[0])
        with torch.inference_mode():
            found = self._run_all(*self._state, given)
        for k in members:
            yield k, self._loop.told(k, found[k])


class CudaStreams:
    """Each member on a stream of its own on one CUDA device, so that small kernels of several run at once."""

    def __init__(self, loop: Loop) -> None:
        import torch

        self._loop = loop
        self._streams = [torch.cuda.Stream(loop.device) for _ in loop.networks]

    def __call__(self, x: Array, members: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """Yield (k, predictions [N, ...] in float64) for each of these members, in order."""
        import torch

        given = torch.from_numpy(x).to(self._loop.device)
        main, begun = torch.cuda.current_stream(self._loop.device), {}
        for k in members:
            self._streams[k].wait_stream(main)
            with torch.cuda.stream(self._streams[k]):
                begun[k] = self._loop.raw(k, given)
        for k in members:
            main.wait_stream(self._streams[k])
            begun[k].record_stream(main)
            yield k, self._loop.told(k, begun[k])


class CudaGraph:
    """The members' kernels recorded once for each of a few batch sizes and replayed; rows are padded to the next size.

    Sizes are the powers of two below the batch, and the batch itself.
    """

    def __init__(self, loop: Loop, x: Array) -> None:
        import torch

        self._loop = loop
        most = len(x)
        self._sizes = [*(1 << power for power in range((most - 1).bit_length())), most]
        self._graphs: dict[int, Any] = {}
        self._inputs: dict[int, torch.Tensor] = {}
        self._outputs: dict[int, list[torch.Tensor]] = {}
        side = torch.cuda.Stream(loop.device)
        # The largest first: smaller ones then find memory that it has taken.
        for size in reversed(self._sizes):
            given = torch.from_numpy(x[:size]).to(loop.device)
            side.wait_stream(torch.cuda.current_stream(loop.device))
            with torch.cuda.stream(side):
                # What is set up at first use cannot be recorded.
                for _ in range(3):
                    self._run_all(given)
            torch.cuda.current_stream(loop.device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outputs = self._run_all(given)
            self._graphs[size], self._inputs[size], self._outputs[size] = graph, given, outputs

    def __call__(self, x: Array, members: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """Yield (k, predictions [N, ...] in float64) for each of these members; all are computed."""
        import torch

        size = next(size for size in self._sizes if size >= len(x))
        self._inputs[size][: len(x)].copy_(torch.from_numpy(x))
        self._graphs[size].replay()
        for k in members:
            yield k, self._loop.told(k, self._outputs[size][k][: len(x)])

    def _run_all(self, given: "torch.Tensor") -> "list[torch.Tensor]":
        return [self._loop.raw(k, given) for k in range(len(self._loop.networks))]


def _refuse_difference(kind: str, fused: Runner, loop: Loop, x: Array) -> None:
    every = range(len(loop.members))
    try:
        found, expected = dict(fused(x, every)), dict(loop(x, every))
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise ServeError(f"kind: got {kind!r}, which these networks do not allow ({first}); use 'loop'") from error
    for k in every:
        apart = float(np.abs(found[k] - expected[k]).max())
        if not apart <= _TOLERANCE * max(1.0, float(np.abs(expected[k]).max())):
            raise ServeError(
                f"kind: got {kind!r}, with which trial {loop.members[k].trial} answers otherwise than alone (by "
                f"{apart:.2g}); allowed: up to {_TOLERANCE:g}; use 'loop'"
            )


def _cast_input(x: "torch.Tensor", network: "torch.nn.Module") -> "torch.Tensor":
    """Return x in the floating type of the network, as in-process prediction does."""
    first = next(network.parameters(), None)
    return x.to(first.dtype) if x.is_floating_point() and first is not None else x
