"""A network without the code that built it: its graph and weights as a `torch.export` program, `model.pt2`.

The file is a zip archive: the graph as JSON, weights and constants as raw bytes. torch would also keep example inputs
and unusual tensors as pickles; here the former are left out, and a file with the latter is for `trust` alone.
"""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING

from trainwright.ensemble.export.operators import NeedsTrust, refuse_target
from trainwright.ensemble.export.program_archive import read_archive, read_text
from trainwright.ensemble.library.cost import BATCH_ROWS, evaluation_mode, make_batch, unwrap
from trainwright.errors import ExportError

if TYPE_CHECKING:
    import torch

__all__ = ["export_network", "load_network", "refuse_unknown"]

_NEAR = 1e-6  # of the greatest output, or of 1: how far the program's outputs may be from the network's
_ROWS = (BATCH_ROWS, 1, 3)  # batches on which they are compared


def export_network(network: "torch.nn.Module", sample: object | Callable[[], object], *, whose: str) -> bytes:
    """Return a network, for batches of any number of rows, as the bytes of a `model.pt2` that runs on the CPU.

    `sample` is a batch or a function that makes one, as `leave` takes it. The network's outputs for 128 rows, 1 and 3
    are compared with the program's. What cannot be exported is refused with the first line of torch's reason.
    """
    import torch

    # A data-parallel wrapper would be traced with its communication.
    network = unwrap(network)
    first = next(network.parameters(), None)
    rows = make_batch(sample, torch.device("cpu"), torch.get_default_dtype() if first is None else first.dtype)
    try:
        if any(tensor.device.type != "cpu" for tensor in network.state_dict().values()):
            network = deepcopy(network).cpu()  # devices are written into the graph
        with evaluation_mode(network), torch.no_grad(), torch.random.fork_rng([]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # The number of rows stays free: serving batches rows as they come.
            dynamic = ({0: torch.export.Dim("rows", min=1)},)
            program = torch.export.export(network, (rows,), dynamic_shapes=dynamic)
            program.example_inputs = None  # which would be a pickle
            buffer = io.BytesIO()
            torch.export.save(program, buffer)
            content = buffer.getvalue()
            # The program is compared with the network at once: a difference found while serving is too
            # late.
            again = load_network(content, whose=whose, trust=True)  # it is ours; who loads it is told what it needs
            difference = max(_relative_difference(network(rows[:count]), again(rows[:count])) for count in _ROWS)
    except ExportError:
        raise
    except Exception as error:  # whatever tracing somebody's model comes to raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ExportError(
            f"{whose}: cannot be exported ({reason}); allowed: a network of one input [rows, ...] that torch.export "
            "can trace for any number of rows; give factory= instead"
        ) from error
    if not difference <= _NEAR:
        raise ExportError(
            f"{whose}: its exported program differs from it by {difference:.2g}; allowed: {_NEAR:g}; is it random in "
            "evaluation mode?"
        )
    return content


def load_network(content: bytes, *, whose: str, trust: bool = False) -> "torch.nn.Module":
    """Return the network of a `model.pt2`, which runs on the device of its input.

    It is read by ourselves, and runs no code of its author's: tensors, and operators of a fixed list. What needs more
    is refused, or with `trust` handed to torch, which loads it as a program with your rights.
    """
    from trainwright.ensemble.export.program_graph import ProgramNetwork

    try:
        with _explain_errors(whose):
            return ProgramNetwork(read_archive(content))
    except ExportError:
        # What our reader refuses may still be honest, such as an operator that is not on the list.
        if not trust:
            raise
    return _load_trusted(content, whose)


def refuse_unknown(content: bytes, *, whose: str) -> None:
    """Raise `NeedsTrust` if a `model.pt2` holds or uses what `load_network` does not run for anybody.

    torch is not needed for that. `load_network` looks more closely, when the network is needed.
    """
    with _explain_errors(whose):
        # Names of operators alone, without torch: an export can be refused before any network is built.
        _, program = read_text(content)
        for node in program["graph_module"]["graph"]["nodes"]:
            refuse_target(node["target"])


@contextmanager
def _explain_errors(whose: str) -> Iterator[None]:
    """Turn what reading a `model.pt2` comes to raise into one sentence on whose it is and what would be allowed."""
    try:
        yield
    except NeedsTrust as error:
        raise NeedsTrust(
            f"{whose}: model.pt2 {error}; allowed: graphs as JSON, plain tensors and the operators that are run for "
            "anybody; trust=True (--trust) loads it as a program, which may do all that you may"
        ) from error
    except ExportError as error:
        raise ExportError(f"{whose}: model.pt2 {error}; export it again") from error
    except Exception as error:  # whatever reading somebody's bytes, and trying their graph on shapes, comes to raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise ExportError(f"{whose}: model.pt2 is no program of torch.export ({reason}); export it again") from error


def _load_trusted(content: bytes, whose: str) -> "torch.nn.Module":
    import torch

    try:
        return torch.export.load(io.BytesIO(content)).module()
    except Exception as error:  # whatever torch, or the program, comes to raise
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportError(f"{whose}: model.pt2 cannot be loaded by torch {torch.__version__} ({first})") from error


def _relative_difference(one: "torch.Tensor", other: "torch.Tensor") -> float:
    if one.shape != other.shape:
        return float("inf")
    scale = max(1.0, float(one.abs().max()))
    return float((one - other).abs().max()) / scale
