"""A member's network: its weights as safetensors bytes, and the factory, or the program, that it comes from again."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.ensemble.export.program import load_network
from trainwright.ensemble.library.cost import unwrap
from trainwright.ensemble.library.member import Member
from trainwright.errors import EnsembleError, ExportError, MissingExtra

if TYPE_CHECKING:
    import torch

__all__ = ["LINKS", "build_network", "factory_name", "serialise_weights"]

LINKS = ("softmax", "identity")


def serialise_weights(model: object) -> bytes:
    """Return the state of a torch module as the bytes of a safetensors file; tied weights are kept twice."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise EnsembleError(f"leave, factory: got a model that is {type(model).__name__}; allowed: a torch.nn.Module")
    state = {}
    for name, tensor in unwrap(model).state_dict().items():
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
    """Return a member's network with its weights, in evaluation mode, on the CPU; from its program if it has one."""
    # A program needs no code of the user's, so it goes first.
    program = member.program()
    if program is not None:
        return load_network(program, whose=f"trial {member.trial}", trust=member.trust)
    content = member.weights()
    if member.factory is None:
        raise ExportError(
            f"trial {member.trial}: has neither a program nor a factory, so its network cannot be built; allowed: "
            "members left with factory= or export=True"
        )
    module = _import_factory(str(member.factory))(dict(member.params))
    try:
        module.load_state_dict(_import_safetensors().load(content))
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise ExportError(
            f"trial {member.trial}: {member.factory} builds another network than the weights are of ({first}); "
            "allowed: the code that the trial was trained with"
        ) from error
    return module.eval()  # type: ignore[no-any-return]


def _import_factory(factory: str) -> Callable[..., Any]:
    module, _, name = factory.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ExportError(
            f"factory {factory!r} cannot be imported ({error}); allowed: a function that Python finds; put its file's "
            "folder on PYTHONPATH"
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
    try:
        import safetensors.torch
    except ImportError:
        raise MissingExtra.of("keeping an ensemble's weights", "safetensors", "torch") from None
    return safetensors.torch
