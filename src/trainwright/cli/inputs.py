"""What options name in a few words: functions of the user's own, models, clusters, numbers of devices, costs."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from trainwright.cluster import Cluster
from trainwright.engine.function_reference import load_function
from trainwright.errors import InputError, MissingExtra, TrainwrightError
from trainwright.files import read_json
from trainwright.model.describe.hugging_face import describe_config, is_config, trace_config
from trainwright.model.profile import Profile
from trainwright.plan import Input
from trainwright.plan.byte_sizes import read_size
from trainwright.plan.parallel.precision import optimizer_of, precision_of
from trainwright.settings import Settings
from trainwright.validators import integer, optional, text

__all__ = [
    "OracleSettings",
    "call_function",
    "find_cluster",
    "read_costs",
    "read_degrees",
    "read_devices",
    "read_loss",
    "read_module",
    "read_profile",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class OracleSettings(Settings, label=""):
    """What the oracle predicts for: a cluster, and how a model is trained on it."""

    cluster: Annotated[str, text(), "a preset's name, or a .toml file"] = "laptop"
    nodes: Annotated[int | None, optional(integer(minimum=1)), "so many nodes of it"] = None
    precision: Annotated[str, text(), "one of fp32, amp-fp16, amp-bf16, amp-fp8 or bf16"] = "fp32"
    optimizer: Annotated[str, text(), "one of sgd, momentum, adam, adamw, or bytes_per_parameter=N"] = "adamw"
    max_memory: Annotated[str | int | None, "what a device may use, such as 16GiB"] = None

    def check_together(self) -> None:
        """Refuse a limit of memory that is no size, and names that no plan knows."""
        self.max_memory_bytes()
        precision_of(self.precision)
        optimizer_of(self.optimizer)

    def max_memory_bytes(self) -> float | None:
        """Return the limit of a device's memory in bytes, if there is one."""
        # A number such as 16e9 is one of bytes; read_size knows units, but no exponents.
        words = str(self.max_memory).partition("e")
        if all(part.replace(".", "").isdigit() for part in (words[0], words[2])):
            return float(str(self.max_memory))
        return None if self.max_memory is None else read_size(self.max_memory, "max_memory")


def call_function(option: str, words: str) -> Any:
    """Return what the function that an option names as MODULE:FUNCTION returns; an error of its own is the option's."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    function = load_function(words, option)
    try:
        return function()
    except TrainwrightError:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise InputError(f"{option}: {words} failed with {kind}: {error}; it is called without arguments") from error


def read_profile(
    model: str,
    sample: str | None,
    *,
    precision: str,
    optimizer: str,
    loss: str | None = None,
    fuse: bool = False,
    sequence: int | None = None,
    trace: Path | None = None,
) -> Profile:
    """Return the profile in a .json file, that of a config.json, or that of a factory, traced without running it.

    `trace` is a file of torch.profiler, which has the seconds of such a model's step.
    """
    if model.endswith(".json"):
        if trace is not None:
            raise InputError(
                f"--trace: got {model}; allowed: with MODULE:FUNCTION and --sample, of which it is a trace"
            )
        if is_config(read_json(model, "profile", allowed="a profile, or a model's config.json")):
            shown = described_in(precision)
            found = describe_config(model, sequence=sequence, precision=shown)
            return found or trace_config(model, sequence=sequence, precision=shown, fuse=fuse)
        return Profile.load(model)
    built, batch = read_module(model, sample)
    # A trace needs an optimizer that it knows; bytes of others are the plan's own.
    known = optimizer if "=" not in optimizer else "adamw"
    traced = described_in(precision) if precision == "amp-fp8" else precision
    choices = {"loss": read_loss(loss), "optimizer": known, "precision": traced, "name": model}
    if trace is not None:
        return Profile.measured(built, batch, profiler_trace=trace, **choices)
    return Profile.trace(built, batch, fuse=fuse, **choices)


def read_module(model: str, sample: str | None) -> tuple[Any, Any]:
    """Return the module that a factory makes, without memory for its weights, and its arguments."""
    if sample is None:
        raise InputError("--sample: got none; allowed: MODULE:FUNCTION that returns the model's arguments (or a dict)")
    with MissingExtra.instead_of_import_error("tracing a model", "torch", "torch"):
        import torch
    # On the meta device a model of any size is built without memory for its weights.
    with torch.device("meta"):
        built = call_function("MODEL", model)
    if not isinstance(built, torch.nn.Module):
        raise InputError(
            f"MODEL: {model} returned {type(built).__name__}; allowed: a function that returns a nn.Module"
        )
    return built, call_function("--sample", sample)


def described_in(precision: str) -> str:
    """Return the precision whose activations a plan in `precision` has."""
    return {"amp-fp8": "amp-bf16"}.get(precision, precision)


def read_loss(loss: str | None) -> Any:
    """Return the function of model and batch that an option names, if it does."""
    return None if loss is None else load_function(loss, "--loss")


def read_degrees(words: str) -> dict[str, int]:
    """Return the degrees that "tensor=8,pipeline=4" fixes."""
    return _read_pairs("--degrees", words, "tensor=8,pipeline=4")


def _read_pairs(option: str, words: str, example: str) -> dict[str, Any]:
    """Return the numbers by name that "a=1,b=2" says."""
    parts = [part.partition("=") for part in words.split(",")]
    try:
        return {name.strip(): json.loads(value) for name, _, value in parts}
    except ValueError:
        raise InputError(f"{option}: got {words!r}; allowed: such as {example}") from None


def find_cluster(name: str, nodes: int | None) -> Cluster:
    """Return a preset by its name, or the cluster of a file."""
    if Path(name).suffix != ".toml":
        return Cluster.preset(name, nodes=nodes)
    cluster = Cluster.load(name)
    return cluster if nodes is None else replace(cluster, nodes=nodes)


def read_devices(words: str, cluster: Cluster) -> list[int]:
    """Return the numbers of devices that "64", "8,16,32" or "max" mean."""
    found = set()
    for part in words.replace("max", str(cluster.devices)).split(","):
        if not part.strip().isdigit() or not 1 <= int(part) <= cluster.devices:
            raise InputError(
                f"--devices: got {words!r}; allowed: numbers from 1 to {cluster.devices} with commas between, or max"
            )
        found.add(int(part))
    return sorted(found)


def read_costs(words: str) -> Input:
    """Return the costs of input that "bytes=110e3,decode=8e-3" says."""
    return Input.from_table(_read_pairs("--input", words, "bytes=110e3,decode=8e-3,workers=8"), "--input")
