"""A network without the code that built it: its graph and weights as a `torch.export` program, `model.pt2`.

The file is a zip archive: the graph as JSON, weights and constants as raw bytes. torch would also keep example inputs
and unusual tensors as pickles; here the former are left out and the latter refused, when writing and when reading, so
that no pickle is ever run. A program is code all the same: load folders of people you trust.
"""

import io
import json
import warnings
import zipfile
from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING

from trainwright.ensemble.cost import BATCH_ROWS, batch_of, evaluating, unwrapped
from trainwright.errors import ExportError

if TYPE_CHECKING:
    import torch

__all__ = ["exported", "network_of"]

_NEAR = 1e-6  # of the greatest output, or of 1: how far the program's outputs may be from the network's
_ROWS = (BATCH_ROWS, 1, 3)  # batches on which they are compared


def exported(network: "torch.nn.Module", sample: object | Callable[[], object], *, whose: str) -> bytes:
    """Return a network, for batches of any number of rows, as the bytes of a `model.pt2` that runs on the CPU.

    `sample` is a batch or a function that makes one, as `leave` takes it. The network's outputs for 128 rows, 1 and 3
    are compared with the program's. What cannot be exported is refused with the first line of torch's reason.
    """
    import torch

    network = unwrapped(network)
    first = next(network.parameters(), None)
    rows = batch_of(sample, torch.device("cpu"), torch.get_default_dtype() if first is None else first.dtype)
    try:
        if any(tensor.device.type != "cpu" for tensor in network.state_dict().values()):
            network = deepcopy(network).cpu()  # devices are written into the graph
        with evaluating(network), torch.no_grad(), torch.random.fork_rng([]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dynamic = ({0: torch.export.Dim("rows", min=1)},)
            program = torch.export.export(network, (rows,), dynamic_shapes=dynamic)
            program.example_inputs = None  # which would be a pickle
            buffer = io.BytesIO()
            torch.export.save(program, buffer)
            content = buffer.getvalue()
            again = network_of(content, whose=whose)
            apart = max(_apart(network(rows[:count]), again(rows[:count])) for count in _ROWS)
    except ExportError:
        raise
    except Exception as error:  # whatever tracing somebody's model comes to raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ExportError(
            f"{whose}: cannot be exported ({reason}); allowed: a network of one input [rows, ...] that torch.export "
            "can trace for any number of rows; give factory= instead"
        ) from error
    if not apart <= _NEAR:
        raise ExportError(
            f"{whose}: its exported program differs from it by {apart:.2g}; allowed: {_NEAR:g}; is it random in "
            "evaluation mode?"
        )
    return content


def network_of(content: bytes, *, whose: str) -> "torch.nn.Module":
    """Return the network of a `model.pt2`, refusing one with pickles in it; its inputs' devices are the CPU."""
    import torch

    try:
        pickles = _pickles(content)
    except (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise ExportError(f"{whose}: model.pt2 is no program of torch.export ({error}); export it again") from error
    if pickles:
        raise ExportError(
            f"{whose}: model.pt2 holds {pickles[0]} as a pickle; allowed: graphs as JSON and plain tensors alone"
        )
    try:
        return torch.export.load(io.BytesIO(content)).module()
    except (RuntimeError, ValueError, KeyError, AssertionError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportError(f"{whose}: model.pt2 cannot be loaded by torch {torch.__version__} ({first})") from error


def _pickles(content: bytes) -> list[str]:
    """Return what in an archive torch would read as a pickle."""
    found = []
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in archive.infolist():
            parts = entry.filename.split("/")[1:]  # below the archive's own name
            if parts and parts[-1].endswith(".pt") and entry.file_size:
                found.append("/".join(parts))
            if parts[:1] == ["data"] and parts[-1].endswith("_config.json"):
                for name, payload in json.loads(archive.read(entry))["config"].items():
                    if payload["use_pickle"] or not payload["path_name"].startswith(("weight_", "tensor_")):
                        found.append(name)
    return found


def _apart(one: "torch.Tensor", other: "torch.Tensor") -> float:
    if one.shape != other.shape:
        return float("inf")
    scale = max(1.0, float(one.abs().max()))
    return float((one - other).abs().max()) / scale
