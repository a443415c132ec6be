"""Loads a member's model: a network from its weights, an ONNX file, or what its factory makes from its files."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from trainwright.ensemble.export.onnx_file import OnnxModel
from trainwright.ensemble.library.callables import Predictor, as_predictor, is_module
from trainwright.ensemble.library.cost import unwrap_ddp
from trainwright.ensemble.library.member import WEIGHTS_FILE, Member
from trainwright.ensemble.library.predictions import ALLOWED, find_fault
from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError, ExportError, MissingExtra, first_line

if TYPE_CHECKING:
    import torch

__all__ = [
    "LINKS",
    "apply_link",
    "build_network",
    "check_outputs",
    "factory_name",
    "predict_member",
    "serialise_weights",
    "shape_outputs",
]

LINKS = ("softmax", "identity")


def predict_member(
    network: "torch.nn.Module", x: "Array | torch.Tensor", member: Member, *, batch_rows: int, device: str
) -> Array:
    """Return predictions [N, C], [N, T] or [N, T, 2] in float64 for a batch x [N, ...], computed in parts."""
    import torch

    if batch_rows < 1:
        raise EnsembleError(f"Ensemble.predict, batch_rows: got {batch_rows}; allowed: an integer >= 1")
    if not isinstance(x, torch.Tensor | np.ndarray):
        raise EnsembleError(f"Ensemble.predict: got {type(x).__name__}; allowed: a numpy array or a torch tensor")
    if x.ndim == 0 or len(x) == 0:
        raise EnsembleError(f"Ensemble.predict: got shape {tuple(x.shape)}; allowed: a batch of at least one row")
    batch = torch.as_tensor(x)
    first = next(network.parameters(), None)
    if batch.is_floating_point() and first is not None:
        batch = batch.to(first.dtype)  # numpy's float64 is hardly ever the network's
    network.to(device)
    try:
        with torch.no_grad():
            parts = [apply_link(network(part.to(device)), member.link).cpu() for part in batch.split(batch_rows)]
    except EnsembleError:
        raise
    except Exception as refused:
        sample = "" if member.input_shape is None else f"; the shape of its sample was {('N', *member.input_shape)}"
        why = f"{type(refused).__name__}: {first_line(refused)}"
        raise EnsembleError(
            f"Ensemble.predict: trial {member.trial} refuses x of shape {tuple(x.shape)} ({why}){sample}"
        ) from refused
    return check_outputs(shape_outputs(torch.cat(parts).double().numpy(), member.output), member)


def apply_link(output: "torch.Tensor", link: str) -> "torch.Tensor":
    """Return what a network's output predicts: probabilities in float64 for "softmax", itself for "identity"."""
    return output.double().softmax(1) if link == "softmax" else output


def shape_outputs(found: Array, output: str) -> Array:
    """Return values [N] as [N, 1] and moments [N, 2] as [N, 1, 2]; others as they are."""
    if output == "moments":
        return found[:, None, :] if found.ndim == 2 else found
    return found[:, None] if output == "values" and found.ndim == 1 else found


def check_outputs(found: Array, member: Member) -> Array:
    """Return a member's predictions, probabilities summing to 1, or raise EnsembleError naming the first bad row."""
    # The same checks as for kept predictions, so that a network cannot predict what `leave` would refuse.
    if member.columns is not None and found.shape[1] != member.columns:
        raise EnsembleError(
            f"Ensemble.predict: trial {member.trial} predicts {found.shape[1]} columns; allowed: {member.columns}, as "
            "the predictions that it left; load it with the code that it was trained with"
        )
    fault = find_fault(found, member.output)
    if fault is not None:
        hint = "; leave with link='softmax' if the network gives logits" if member.output == "classes" else ""
        where = f"Ensemble.predict: row {fault[0]} of trial {member.trial}"
        raise EnsembleError(f"{where} {fault[1]}; allowed: {ALLOWED[member.output]}{hint}")
    return found / found.sum(axis=1, keepdims=True) if member.output == "classes" else found


def serialise_weights(model: object) -> bytes:
    """Return the state of a torch module as the bytes of a safetensors file; tied weights are kept twice."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise EnsembleError(f"leave, factory: got a model that is {type(model).__name__}; allowed: a torch.nn.Module")
    state = {}
    for name, tensor in unwrap_ddp(model).state_dict().items():
        if not isinstance(tensor, torch.Tensor) or hasattr(tensor, "full_tensor"):
            raise EnsembleError(
                f"leave, factory: {name!r} is {type(tensor).__name__}; allowed: plain tensors on this device; leave "
                "out factory= for a model that is sharded or keeps other state"
            )
        state[name] = tensor.detach().cpu().clone().contiguous()
    return bytes(_import_safetensors().save(state))


def factory_name(factory: str | Callable[..., Any]) -> str:
    """Return "module:function", refusing what another process could not import."""
    # A name is checked in form only: it is imported where the ensemble is loaded.
    if isinstance(factory, str):
        if factory.count(":") != 1 or not all(factory.split(":")):
            raise EnsembleError(f"leave, factory: got {factory!r}; allowed: 'module:function', or a function")
        return factory
    name, module = getattr(factory, "__qualname__", ""), getattr(factory, "__module__", "")
    if not name or "<" in name or "." in name or not module:
        raise EnsembleError(
            f"leave, factory: got {name or factory!r}; allowed: a function at the top level of a module, so that it "
            "can be imported where the ensemble is loaded"
        )
    if module.startswith("__"):  # the script that was started: it can be imported by its file's name
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None:
            raise EnsembleError(
                f"leave, factory: {name!r} was not read from a file; allowed: a function of a module or script"
            )
        module = Path(file).stem
    return f"{module}:{name}"


def build_network(member: Member) -> "torch.nn.Module":
    """Return what a member predicts with as a module in evaluation mode, on the CPU: its ONNX file if it has one.

    Else what its factory builds of the trial's parameters and, if files were left, their folder: a network, which gets
    the weights that were kept, or an estimator or a callable of arrays.
    """
    whose = f"trial {member.trial}"
    program = member.program()
    # An ONNX file needs no code of the user's, so it goes first.
    if program is not None:
        return _module_of(OnnxModel(program, whose=whose), member, whose)
    if not member.predicts or member.factory is None:
        member.model_files()  # which refuses a member that left nothing
        raise ExportError(
            f"{whose}: has neither an ONNX file nor a factory, so its network cannot be built; allowed: members left "
            "with factory= or export=True"
        )
    folder = member.files_folder()
    arguments = (dict(member.params),) if folder is None else (dict(member.params), folder)
    module = _import_factory(member.factory)(*arguments)
    if WEIGHTS_FILE not in member.digests:
        return _module_of(module, member, f"{whose}, {member.factory}")
    try:
        module.load_state_dict(_import_safetensors().load(member.weights()))
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise ExportError(
            f"{whose}: {member.factory} builds another network than the weights are of ({first}); "
            "allowed: the code that the trial was trained with"
        ) from error
    return module.eval()  # type: ignore[no-any-return]


def _module_of(model: object, member: Member, whose: str) -> "torch.nn.Module":
    if is_module(model):
        return cast("torch.nn.Module", model).eval()
    # What gives logits is told from its link, as of networks.
    columns = member.columns if member.link == "identity" else None
    return _wrap_callable(as_predictor(model, member.output, columns, whose), member.input_dtype).eval()


def _wrap_callable(predict: Predictor, input_dtype: str | None) -> "torch.nn.Module":
    """Return a callable of arrays as a torch module without parameters, which computes on the CPU."""
    import torch

    wanted = None if input_dtype is None else np.dtype(input_dtype)

    class CallableModule(torch.nn.Module):
        """Takes batches from any device, and answers there."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = x.detach().cpu().numpy()
            # Floats in the precision of the sample, so that served rows get the answers that arrays get.
            if rows.dtype.kind == "f" and wanted is not None and wanted.kind == "f":
                rows = rows.astype(wanted, copy=False)
            found = predict(rows)
            wide = np.array(found, dtype=np.float32 if found.dtype == np.float32 else np.float64)
            return torch.from_numpy(wide).to(x.device)

    return CallableModule()


def _import_factory(factory: str) -> Callable[..., Any]:
    module, _, name = factory.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ExportError(
            f"factory {factory!r} cannot be imported ({error}); allowed: a function that Python finds; put its file's "
            "folder on PYTHONPATH, or save the ensemble with self_contained"
        ) from error
    # The name comes from a file that somebody else may have written.
    if not callable(found):
        raise ExportError(f"factory {factory!r} is {type(found).__name__}; allowed: a function of the parameters")
    # A name alone must not reach the tools that run programs, such as subprocess:run.
    owners = {one.split(".")[0] for one in (module, str(getattr(found, "__module__", None)))}
    if foreign := sorted(owners & (sys.stdlib_module_names | {"None", "torch"})):
        raise ExportError(
            f"factory {factory!r} is a part of {foreign[0]}; allowed: a function of your own code that builds a network"
        )
    return found  # type: ignore[no-any-return]


def _import_safetensors() -> Any:
    with MissingExtra.instead_of_import_error("keeping an ensemble's weights", "safetensors", "torch"):
        import safetensors.torch
    return safetensors.torch
