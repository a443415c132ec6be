"""Parses and validates inference requests of the Open Inference Protocol, version 2, against the ensemble."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainwright.ensemble import Ensemble
from trainwright.ensemble.metrics import Array
from trainwright.errors import RequestError, closest
from trainwright.serve.http.tensors import DATATYPES, HEADER_LENGTH, Datatype, TrailingBytes, datatype_of, read_values
from trainwright.serve.service import Limits, Options, can_promise

__all__ = ["INPUT", "INTERVAL", "SET", "InferBody", "InferRequest", "Signature", "TooLarge", "read_request"]

INPUT = "input"
SET, INTERVAL = "prediction_set", "prediction_interval"


class TooLarge(RequestError):
    """A request of more rows than the limits allow; status 413."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _TensorParameters(_Strict):
    """Other parameters of a tensor are ignored."""

    model_config = ConfigDict(strict=True, extra="allow")
    binary_data_size: Annotated[int, Field(ge=1)] | None = None


class _InputTensor(_Strict):
    """The input: its values as JSON, or as bytes behind the JSON part."""

    name: Literal["input"]
    datatype: Datatype
    shape: Annotated[list[Annotated[int, Field(ge=1, lt=2**31)]], Field(min_length=1, max_length=32)]
    parameters: _TensorParameters = Field(default_factory=_TensorParameters)
    data: list[Any] | None = None  # flat in row-major order, or nested as the shape says


class _OutputParameters(_Strict):
    """Other parameters of an output are ignored."""

    model_config = ConfigDict(strict=True, extra="allow")
    binary_data: bool | None = None


class _OutputSelection(_Strict):
    """An output that is asked for."""

    name: str
    parameters: _OutputParameters = Field(default_factory=_OutputParameters)


class _InferParameters(_Strict):
    """What may be asked for beside the prediction; others are named in the reply's `parameters_ignored`."""

    model_config = ConfigDict(strict=True, extra="allow")
    return_members: bool = False
    return_uncertainty: bool = False
    return_conformal: bool = False
    binary_data_output: bool = False
    deadline_ms: Annotated[float, Field(gt=0, le=86_400_000)] | None = None


class InferBody(_Strict):
    """The JSON part of an inference request."""

    id: str | None = None
    inputs: Annotated[list[_InputTensor], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[_OutputSelection], Field(min_length=1)] | None = None
    parameters: _InferParameters = Field(default_factory=_InferParameters)


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """The input of an ensemble's networks and the names of its outputs."""

    shape: tuple[int, ...] | None  # of one row; None if no sample was left
    dtype: str | None
    outputs: Mapping[str, list[int]]  # name → shape, -1 for any size

    @classmethod
    def of(cls, ensemble: Ensemble) -> "Signature":
        """Return what the members' samples tell, and the outputs that can be asked for."""
        sampled = next((member for member in ensemble.members if member.input_shape is not None), None)
        # Rows, then classes or values, then mean and variance.
        prediction = [-1, -1, 2] if ensemble.output == "moments" else [-1, -1]
        uncertainty = [-1] if ensemble.output == "classes" else [-1, -1]
        shapes = {"prediction": prediction, "uncertainty_total": uncertainty, "uncertainty_epistemic": uncertainty}
        if ensemble.output != "values":
            shapes["uncertainty_aleatoric"] = uncertainty
        if ensemble.threshold is not None:
            shapes["out_of_range"] = [-1]
        if can_promise(ensemble):
            shapes |= {SET: [-1, -1]} if ensemble.output == "classes" else {INTERVAL: [-1, -1, 2]}
        return cls(
            shape=sampled.input_shape if sampled else None,
            dtype=sampled.input_dtype if sampled else None,
            outputs=shapes | {f"member_{member.trial}": prediction for member in ensemble.members},
        )

    @property
    def datatype(self) -> str:
        """The protocol's name of the input's dtype; FP32 if that is unknown."""
        return "FP32" if self.dtype is None else datatype_of(self.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class InferRequest:
    """One inference request."""

    x: Array
    options: Options = field(default_factory=Options)
    id: str | None = None
    outputs: Mapping[str, bool] | None = None  # name → whether in binary; None: all that the options give
    binary: bool = False  # for outputs that are not named
    ignored: tuple[str, ...] = ()  # parameters that mean nothing here, such as the protocol's priority


def read_request(
    body: bytes | bytearray, header_length: str | None, signature: Signature, limits: Limits
) -> InferRequest:
    """Return what a request asks for, or raise RequestError: which field, what it holds, what is allowed."""
    length = len(body) if header_length is None else _read_length(header_length, len(body))
    try:
        content = InferBody.model_validate_json(body[:length])
    except ValidationError as error:
        raise _request_error(error) from None
    # The values are read last: nothing is copied for a request that is refused.
    parameters = content.parameters
    outputs = _select_outputs(content, signature)
    names = outputs or {}
    # Who names an output need not set the option that gives it.
    doubt = any(name.startswith("uncertainty_") or name == "out_of_range" for name in names)
    members = any(name.startswith("member_") for name in names)
    return InferRequest(
        x=_read_input(content.inputs[0], TrailingBytes(memoryview(body)[length:]), signature, limits),
        options=Options(
            members=parameters.return_members or members,
            uncertainty=parameters.return_uncertainty or doubt,
            conformal=parameters.return_conformal or bool({SET, INTERVAL} & set(names)),
            deadline_ms=parameters.deadline_ms,
        ),
        id=content.id,
        outputs=outputs,
        binary=parameters.binary_data_output,
        ignored=tuple(parameters.model_extra or ()),
    )


def _read_length(header: str, most: int) -> int:
    if not (header.isascii() and header.isdigit()) or len(header) > 15 or int(header) > most:
        raise RequestError(f"{HEADER_LENGTH}: got {header[:20]!r}; allowed: bytes of the JSON part, up to {most}")
    return int(header)


def _request_error(error: ValidationError) -> RequestError:
    """Return the first thing that is wrong in one sentence."""
    # Pydantic lists every mistake; one sentence names the first.
    [first, *_] = error.errors(include_url=False)
    where = "request"
    for part in first["loc"]:
        where = f"{where}[{part}]" if isinstance(part, int) else f"{where}.{part}"
    where = where.removeprefix("request.")
    message = first["msg"].removeprefix("Input should be ")
    if first["type"] == "json_invalid":
        return RequestError(f"body: is no valid JSON ({message}); allowed: an inference request of the protocol")
    if first["type"] == "missing":
        return RequestError(f"{where}: is missing; allowed: an inference request of the protocol")
    if first["type"] == "extra_forbidden":
        return RequestError(f"{where}: is unknown; allowed: the fields of the protocol")
    return RequestError(f"{where}: got {reprlib.repr(first['input'])}; allowed: {message}")


def _select_outputs(content: InferBody, signature: Signature) -> dict[str, bool] | None:
    """Return which outputs are asked for by name, and whether in binary; None if none is."""
    if content.outputs is None:
        return None
    found: dict[str, bool] = {}
    for place, one in enumerate(content.outputs):
        if one.name not in signature.outputs or one.name in found:
            raise RequestError(
                f"outputs[{place}].name: got {one.name[:60]!r}; allowed: {', '.join(signature.outputs)}, each once"
                f"{closest(one.name[:60], signature.outputs)}"
            )
        _refuse_extensions(one.parameters, f"outputs[{place}].parameters")
        binary = one.parameters.binary_data
        found[one.name] = content.parameters.binary_data_output if binary is None else binary
    return found


def _refuse_extensions(parameters: BaseModel, where: str) -> None:
    """Refuse what would change the values of a tensor, or where they are; other parameters of it may be ignored."""
    for name in parameters.model_extra or ():
        if name == "classification" or name.startswith("shared_memory_"):
            raise RequestError(f"{where}: got {name!r}; allowed: values of the tensor itself, in JSON or binary")


def _read_input(tensor: _InputTensor, behind: TrailingBytes, signature: Signature, limits: Limits) -> Array:
    # Shapes are compared before values, so that the sentence names the larger mistake.
    rows, *shape = tensor.shape
    if rows > limits.rows:
        raise TooLarge(f"inputs[0].shape: got {rows} rows; allowed: {limits.rows} a request; send several")
    if signature.shape is not None and tuple(shape) != signature.shape:
        raise RequestError(f"inputs[0].shape: got {str(tensor.shape)[:60]}; allowed: {['N', *signature.shape]}")
    _refuse_extensions(tensor.parameters, "inputs[0].parameters")
    found = read_values(
        tensor.datatype,
        tensor.shape,
        where="inputs[0]",
        data=tensor.data,
        size=tensor.parameters.binary_data_size,
        behind=behind,
    )
    behind.finish()
    return found if signature.dtype is None else _cast_values(found, np.dtype(signature.dtype))


def _cast_values(found: Array, dtype: "np.dtype[Any]") -> Array:
    """Return the values in the network's dtype: of the same kind (real, whole, truth), and in its range."""
    if found.dtype == dtype:
        return found
    groups = {"f": "f", "i": "iu", "u": "iu", "b": "b"}
    if found.dtype.kind not in groups[dtype.kind]:
        fitting = [name for name, code in DATATYPES.items() if np.dtype(code).kind in groups[dtype.kind]]
        raise RequestError(
            f"inputs[0].datatype: got {datatype_of(found.dtype)}; allowed: {datatype_of(dtype)}, for the networks take "
            f"{dtype}, or another of {', '.join(fitting)}"
        )
    # Beyond its range a number would become another one, or infinite.
    if dtype.kind != "b":
        limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        if found.min() < limits.min or found.max() > limits.max:
            raise RequestError(
                f"inputs[0]: got values from {found.min()} to {found.max()}; allowed: what {dtype} holds, {limits.min} "
                f"to {limits.max}"
            )
    return found.astype(dtype)
