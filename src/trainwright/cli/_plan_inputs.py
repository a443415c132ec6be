"""What `trainwright plan` is given: a model or a profile, a cluster, numbers of devices, costs of input and saves."""

from pathlib import Path

from trainwright.cli._functions import function_of, made_by
from trainwright.cluster import Cluster
from trainwright.errors import InputError, MissingExtra
from trainwright.model.profile import Profile
from trainwright.plan import Input
from trainwright.plan.parallel.precision import optimizer_of

__all__ = ["cluster_of", "devices_of", "input_of", "profile_of"]


def profile_of(model: str, sample: str | None, *, precision: str, optimizer: str) -> "Profile":
    """Return the profile in a .json file, or that of a factory, traced on its sample without running it."""
    if model.endswith(".json"):
        return Profile.load(model)
    if sample is None:
        raise InputError("--sample: got none; allowed: MODULE:FUNCTION that returns the model's arguments (or a dict)")
    try:
        import torch
    except ImportError as error:
        raise MissingExtra.of("tracing a model", "torch", "torch") from error
    build = function_of("MODEL", model)
    with torch.device("meta"):
        built = made_by("MODEL", model, build)
    if not isinstance(built, torch.nn.Module):
        raise InputError(
            f"MODEL: {model} returned {type(built).__name__}; allowed: a function that returns a nn.Module"
        )
    batch = made_by("--sample", sample, function_of("--sample", sample))
    optimizer_of(optimizer)  # the plan knows more than a trace does, and says so
    known = optimizer if "=" not in optimizer else "adamw"
    return Profile.trace(built, batch, optimizer=known, precision=precision, name=model)


def cluster_of(text: str, nodes: int | None, *, force_units: bool) -> "Cluster":
    """Return a preset by its name, or the cluster of a file."""
    from dataclasses import replace

    path = Path(text)
    if path.suffix not in {".toml", ".yaml", ".yml"}:
        return Cluster.preset(text, nodes=nodes)
    cluster = Cluster.load(path, force_units=force_units)
    return cluster if nodes is None else replace(cluster, nodes=nodes)


def devices_of(text: str, cluster: "Cluster") -> list[int]:
    """Return the numbers of devices that "64", "8,16,32" or "max" mean."""
    found = []
    for part in text.split(","):
        if part.strip() == "max":
            found.append(cluster.devices)
            continue
        if not part.strip().isdigit() or not 1 <= int(part) <= cluster.devices:
            raise InputError(
                f"--devices: got {text!r}; allowed: numbers from 1 to {cluster.devices} with commas between, or max"
            )
        found.append(int(part))
    return sorted(set(found))


def input_of(text: str) -> "Input":
    """Return the costs of input that "bytes=110e3,decode=8e-3" says."""
    values: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        try:
            values[name.strip()] = float(number)
        except ValueError:
            raise InputError(f"--input: got {part!r}; allowed: such as bytes=110e3,decode=8e-3,workers=8") from None
    unknown = sorted(set(values) - {"bytes", "decode", "workers"})
    if unknown:
        raise InputError(f"--input: got {unknown[0]!r}; allowed: bytes, decode, workers")
    return Input(
        bytes=values.get("bytes", 0.0), decode=values.get("decode", 0.0), workers=int(values.get("workers", 8))
    )
