"""Exports members as ONNX files, `model.onnx`: a graph of known operators and its weights, without anybody's code.

Written from torch networks with `torch.onnx`, or left as they are; computed on the CPU by onnxruntime.
"""

import io
import logging
import re
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.ensemble.library.cost import BATCH_ROWS, evaluation_mode, make_batch, unwrap_ddp
from trainwright.ensemble.metrics import Array
from trainwright.errors import ExportError, MissingExtra

if TYPE_CHECKING:
    import torch

__all__ = ["OnnxModel", "export_network"]

_NEAR = 1e-5  # of the greatest output, or of 1: how far the file's outputs may be from the network's
_ROWS = (BATCH_ROWS, 1, 3)  # batches on which they are compared
_ELSEWHERE = b"location"  # the key without which no ONNX file can name another file that has its weights

_FLOATS = ("tensor(float)", "tensor(double)", "tensor(float16)")
_DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype("float32"),
    "tensor(double)": np.dtype("float64"),
    "tensor(float16)": np.dtype("float16"),
    "tensor(int64)": np.dtype("int64"),
    "tensor(int32)": np.dtype("int32"),
}


class OnnxModel:
    """A callable x [N, ...] -> the first output of an ONNX file, which has one input; its bytes are `content`.

    Raises ExportError for what onnxruntime does not take, such as an operator that it does not know.
    """

    def __init__(self, content: bytes, *, whose: str) -> None:
        if _ELSEWHERE in content:
            raise ExportError(
                f"{whose}: model.onnx refers to weights in another file; allowed: weights inside of it; save it again "
                "in one file (onnx.save(model, path) of a model that is loaded whole)"
            )
        import torch

        runtime = _import_runtime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # A pool that spins takes the cores from the other members.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 4
        try:
            session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has an exception of its own for every status
            raise ExportError(
                f"{whose}: model.onnx cannot be loaded by onnxruntime {runtime.__version__} ({_first_line(error)}); "
                "allowed: a file of the operators that it knows; export it again for this version"
            ) from error
        if len(session.get_inputs()) != 1:
            raise ExportError(
                f"{whose}: model.onnx has {len(session.get_inputs())} inputs; allowed: one, of shape [rows, ...]"
            )
        self.content = content
        self._whose, self._session = whose, session
        self._input = session.get_inputs()[0]
        # Converters of classifiers give the label first, then the probabilities as a tensor of floats.
        outputs = session.get_outputs()
        self._outputs = [next((one for one in outputs if one.type in _FLOATS), outputs[0]).name]
        self._dtype = _DTYPES.get(self._input.type, np.dtype("float32"))

    def __call__(self, x: Array) -> Array:
        """Return what the file predicts for a batch of rows."""
        try:
            [found] = self._session.run(self._outputs, {self._input.name: np.ascontiguousarray(x, self._dtype)})
        except Exception as error:
            raise ExportError(
                f"{self._whose}: model.onnx refuses a batch of shape {x.shape} ({_first_line(error)}); allowed: "
                f"{self._input.shape} of {self._input.type}, for any number of rows"
            ) from error
        return np.asarray(found)


def export_network(network: "torch.nn.Module", sample: object | Callable[[], object], *, whose: str) -> bytes:
    """Return a network, for batches of any number of rows, as the bytes of a `model.onnx`.

    `sample` is a batch or a function that makes one, as `leave` takes it. The network's outputs for 128 rows, 1 and 3
    are compared with the file's. What cannot be exported is refused with the first line of torch's reason.
    """
    import torch

    _import_runtime()
    # A data-parallel wrapper would be traced with its communication.
    network = unwrap_ddp(network)
    first = next(network.parameters(), None)
    rows = make_batch(sample, torch.device("cpu"), torch.get_default_dtype() if first is None else first.dtype)
    try:
        if any(tensor.device.type != "cpu" for tensor in network.state_dict().values()):
            network = deepcopy(network).cpu()
        with evaluation_mode(network), torch.no_grad(), torch.random.fork_rng([]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = _trace_network(network, rows)
            # Compared at once: a difference that is found while serving is found too late.
            model = OnnxModel(content, whose=whose)
            difference = max(
                _relative_difference(network(rows[:count]).numpy(), model(rows[:count].numpy())) for count in _ROWS
            )
    except (ExportError, MissingExtra):
        raise
    except Exception as error:  # whatever tracing somebody's model comes to raise
        raise ExportError(
            f"{whose}: cannot be exported ({_first_line(error)}); allowed: a network of one input [rows, ...] that "
            "torch.onnx can trace for any number of rows; give factory= instead"
        ) from error
    if not difference <= _NEAR:
        raise ExportError(
            f"{whose}: its ONNX file differs from it by {difference:.2g}; allowed: {_NEAR:g}; is it random in "
            "evaluation mode?"
        )
    return content


def _trace_network(network: "torch.nn.Module", rows: "torch.Tensor") -> bytes:
    import torch

    with MissingExtra.instead_of_import_error("an ensemble without factories", "onnxscript", "onnx"):
        import onnxscript  # noqa: F401 - what torch.onnx writes with
    # Of the packages that are not here, and of its progress, the exporter tells on every call.
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        log.setLevel(logging.ERROR)
        with redirect_stdout(io.StringIO()):
            # The number of rows stays free: serving batches rows as they come. Traced here, because the exporter would
            # fall back to a trace that takes the branches of these rows for all.
            dynamic = ({0: torch.export.Dim("rows", min=1)},)
            traced = torch.export.export(network, (rows,), dynamic_shapes=dynamic)
            program = torch.onnx.export(traced, dynamo=True, verbose=False)
    finally:
        log.setLevel(level)
    if program is None:
        raise ExportError("torch.onnx gave no program")
    proto = program.model_proto
    # Traces of the source lines behind each node: nobody's business, and most of a small file.
    for part in (proto, proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.input, *proto.functions):
        part.ClearField("metadata_props")
    return bytes(proto.SerializeToString())


def _relative_difference(one: Array, other: Array) -> float:
    if one.shape != other.shape:
        return float("inf")
    scale = max(1.0, float(np.abs(one).max()))
    return float(np.abs(one - other).max()) / scale


def _first_line(error: Exception) -> str:
    first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    # Where in onnxruntime's source it was raised says nothing to users, and is longer than what it says.
    return re.sub(r"/\S+:\d+ .*\) ", "", first)[:200]


def _import_runtime() -> Any:
    with MissingExtra.instead_of_import_error("a member that is an ONNX file", "onnxruntime", "onnx"):
        import onnxruntime
    return onnxruntime
