"""Helpers of all formats: dtypes, tied tensors, escaped names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwright.checkpoint.save.shard_file import CODES
from trainwright.errors import CheckpointFormatError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "DTYPES",
    "TensorInfo",
    "as_bytes",
    "check_dtypes",
    "equal_bits",
    "escape",
    "infos_of",
    "plain",
    "unescape",
]

DTYPES = frozenset({*CODES, "complex128"})
"""Every dtype that checkpoints hold, as torch names them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInfo:
    """What is known of a stored tensor without reading it; `tied` is the name that it shares its memory with."""

    # As torch names it: "float32", "bfloat16", "float8_e4m3fn".
    dtype: str
    shape: tuple[int, ...]
    tied: str | None = None


def as_bytes(tensor: "Tensor") -> "Tensor":
    """Return the bytes of a tensor in row-major order, flat; a view if they lie so."""
    import torch

    flat = tensor.contiguous().reshape(-1)
    # A single value may have any stride, which a view as bytes may not.
    if flat.numel() < 2:
        flat = flat.clone(memory_format=torch.contiguous_format).as_strided(flat.shape, (1,))
    return flat.view(torch.uint8)


def plain(tensor: "Tensor") -> "Tensor":
    """Return the tensor on the CPU, contiguous, without gradient, and with no memory but its own.

    Writing a view would otherwise write all of the storage that it looks into.
    """
    own = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    whole = own.untyped_storage().nbytes() == own.nbytes
    # One without values may lie where another begins.
    return own if whole and own.numel() else own.clone()


def equal_bits(one: "Tensor", other: "Tensor") -> bool:
    """Tell whether two tensors have one dtype, one shape and the same bits: NaN equals NaN, 0 is not -0."""
    import torch

    same = one.dtype == other.dtype and one.shape == other.shape
    return same and torch.equal(as_bytes(one), as_bytes(other))


def check_dtypes(infos: Mapping[str, TensorInfo], dtypes: frozenset[str], format_name: str) -> None:
    """Refuse tensors of other dtypes than a format can hold, and names that are no Unicode."""
    for name, info in infos.items():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise CheckpointFormatError(
                f"write, name: got {name!r}; allowed: Unicode text without lone surrogates"
            ) from None
        if info.dtype not in dtypes:
            # Not the list of formats: they import this module.
            allowed = (
                "one of the formats that hold every dtype, such as 'torch'"
                if info.dtype in DTYPES
                else "dense dtypes without quantisation parameters"
            )
            raise CheckpointFormatError(
                f"write, {name!r}: got dtype {info.dtype}, which the format {format_name!r} cannot hold; "
                f"allowed: {allowed}"
            )


def infos_of(tensors: "Mapping[str, Tensor]") -> dict[str, TensorInfo]:
    """Return what tensors are; of those that are one memory, the later names are tied to the first."""
    return dict(_looked_at(tensors))


def _looked_at(tensors: "Mapping[str, Tensor]") -> Iterator[tuple[str, TensorInfo]]:
    import torch

    first: dict[tuple[object, ...], str] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_meta:
            kind = f"a {tensor.layout} tensor" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise CheckpointFormatError(
                f"write, {name!r}: got {kind}; allowed: dense tensors that hold values; make it dense first"
            )
        shape = tuple(tensor.shape)
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, shape, tensor.stride(), tensor.is_conj())
        # Tensors without values may have the same address by chance.
        tied = first.setdefault(place, name) if tensor.numel() else name
        yield (
            name,
            TensorInfo(
                dtype=str(tensor.dtype).removeprefix("torch."), shape=shape, tied=None if tied == name else tied
            ),
        )


def escape(name: str) -> str:
    """Return the name under which a format keeps a tensor that takes any name but its own "__metadata__" and "%..."."""
    return f"%{name}" if name.startswith("%") or name == "__metadata__" else name


def unescape(name: str) -> str:
    """Undo `escape`."""
    return name[1:] if name.startswith("%%") or name == "%__metadata__" else name
