"""Parses the body of an inference request and checks it against the ensemble's input."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pydantic_core

from trainwright.ensemble import Ensemble
from trainwright.ensemble.metrics import Array
from trainwright.errors import RequestError, closest
from trainwright.serve.http.limits import Limits, TooLarge
from trainwright.serve.http.tensors import DATATYPES, HEADER_LENGTH, Bytes, datatype_of, refuse_extensions, values_of
from trainwright.serve.service import Options

__all__ = ["INPUT", "InferRequest", "Signature", "read_request"]

INPUT = "input"
_MOST_MS = 86_400_000.0
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")
_KEYS = ("id", "inputs", "outputs", "parameters")
_SWITCHES = ("return_members", "return_uncertainty", "trace", "binary_data_output")
_PARAMETERS = (*_SWITCHES, "deadline_ms", "max_members")


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """The input of an ensemble's networks and the names of its outputs."""

    shape: tuple[int, ...] | None  # of one row; None if no sample was left
    dtype: str | None
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, ensemble: Ensemble) -> "Signature":
        """Return what the members' samples tell, and the outputs that can be asked for."""
        told = next((member for member in ensemble.members if member.input_shape is not None), None)
        names = ["prediction", "uncertainty_total", "uncertainty_epistemic"]
        if ensemble.output != "values":
            names.append("uncertainty_aleatoric")
        if ensemble.threshold is not None:
            names.append("out_of_range")
        return cls(
            shape=told.input_shape if told else None,
            dtype=told.input_dtype if told else None,
            outputs=(*names, *(f"member_{member.trial}" for member in ensemble.members)),
        )

    @property
    def datatype(self) -> str:
        """The protocol's name of the input's dtype; FP32 if that is unknown."""
        return "FP32" if self.dtype is None else datatype_of(self.dtype)

    @staticmethod
    def output_shape(name: str, kind: str) -> list[int]:
        """Return the shape of an output, -1 for any size: rows, then classes or values, then mean and variance."""
        if name == "out_of_range":
            return [-1]
        if name.startswith("uncertainty_"):
            return [-1] if kind == "classes" else [-1, -1]
        return [-1, -1, 2] if kind == "moments" else [-1, -1]


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
    told, behind = _split_body(body, header_length, limits)
    _refuse_unknown(told, _KEYS, "request")
    name = told.get("id")
    if name is not None and not isinstance(name, str):
        raise RequestError(f"id: got {type(name).__name__}; allowed: a string")
    parameters = _check_object(told.get("parameters", {}), "parameters")
    options, binary = _read_options(parameters)
    outputs, options = _read_outputs(told.get("outputs"), options, binary, signature)
    return InferRequest(
        x=_read_input(told, behind, signature, limits),
        options=options,
        id=name,
        outputs=outputs,
        binary=binary,
        ignored=tuple(each for each in parameters if each not in _PARAMETERS),
    )


def _split_body(body: bytes | bytearray, header_length: str | None, limits: Limits) -> tuple[dict[str, Any], Bytes]:
    length = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit()) or len(header_length) > 15:
            raise RequestError(f"{HEADER_LENGTH}: got {header_length[:20]!r}; allowed: the bytes of the JSON part")
        if int(header_length) > length:
            raise RequestError(f"{HEADER_LENGTH}: got {header_length}; allowed: at most the body's {length} bytes")
        length = int(header_length)
    # Depth is limited before parsing, since deep JSON exhausts the parser's stack.
    head = body if length == len(body) else body[:length]
    # Counted before it is parsed; strings go first, for what they hold are no brackets.
    marks = np.frombuffer(_STRING.sub(b"", head).translate(None, _BRACKETS), dtype="u1")
    depth = int(np.where((marks == ord("[")) | (marks == ord("{")), 1, -1).cumsum().max(initial=0))
    if depth > limits.json_depth:
        raise RequestError(f"body: got JSON of depth {depth}; allowed: {limits.json_depth}")
    try:
        told = pydantic_core.from_json(head, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"body: is no valid JSON ({error}); allowed: an inference request of the protocol") from None
    return _check_object(told, "request"), Bytes(memoryview(body)[length:])


def _check_object(told: object, where: str) -> dict[str, Any]:
    if not isinstance(told, dict):
        raise RequestError(f"{where}: got {type(told).__name__}; allowed: a JSON object")
    return told


def _refuse_unknown(told: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in told.keys() - set(names):
        raise RequestError(f"{where}: got {name[:60]!r}; allowed: {', '.join(names)}{closest(name[:60], names)}")


def _read_options(told: Mapping[str, Any]) -> tuple[Options, bool]:
    for name in _SWITCHES:
        if not isinstance(told.get(name, False), bool):
            raise RequestError(f"parameters.{name}: got {str(told[name])[:60]!r}; allowed: true or false")
    deadline, members = told.get("deadline_ms"), told.get("max_members")
    if deadline is not None and (
        type(deadline) not in {int, float} or not (0 < deadline <= _MOST_MS and math.isfinite(deadline))
    ):
        raise RequestError(f"parameters.deadline_ms: got {str(deadline)[:60]!r}; allowed: a number > 0, up to a day")
    if members is not None and (type(members) is not int or members < 1):
        raise RequestError(f"parameters.max_members: got {str(members)[:60]!r}; allowed: an integer >= 1")
    options = Options(
        members=told.get("return_members", False),
        uncertainty=told.get("return_uncertainty", False),
        deadline_ms=None if deadline is None else float(deadline),
        max_members=members,
        trace=told.get("trace", False),
    )
    return options, told.get("binary_data_output", False)


def _read_outputs(
    told: object, options: Options, binary: bool, signature: Signature
) -> tuple[dict[str, bool] | None, Options]:
    """Return which outputs are asked for by name; who names one need not set the option that gives it."""
    if told is None:
        return None, options
    if not isinstance(told, list) or not told:
        raise RequestError("outputs: got no list of outputs; allowed: one or more objects with a name, or none at all")
    found: dict[str, bool] = {}
    for place, each in enumerate(told):
        where = f"outputs[{place}]"
        one = _check_object(each, where)
        _refuse_unknown(one, ("name", "parameters"), where)
        name = one.get("name")
        if not isinstance(name, str) or name not in signature.outputs or name in found:
            raise RequestError(
                f"{where}.name: got {str(name)[:60]!r}; allowed: {', '.join(signature.outputs)}, each once"
                f"{closest(str(name)[:60], signature.outputs)}"
            )
        parameters = _check_object(one.get("parameters", {}), f"{where}.parameters")
        refuse_extensions(parameters, f"{where}.parameters")
        chosen = parameters.get("binary_data", binary)
        if not isinstance(chosen, bool):
            raise RequestError(f"{where}.parameters.binary_data: got {str(chosen)[:60]!r}; allowed: true or false")
        found[name] = chosen
    doubt = any(name.startswith("uncertainty_") or name == "out_of_range" for name in found)
    members = any(name.startswith("member_") for name in found)
    return found, Options(
        members=options.members or members,
        uncertainty=options.uncertainty or doubt,
        deadline_ms=options.deadline_ms,
        max_members=options.max_members,
        trace=options.trace,
    )


def _read_input(told: Mapping[str, Any], behind: Bytes, signature: Signature, limits: Limits) -> Array:
    inputs = told.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1:
        count = len(inputs) if isinstance(inputs, list) else "no list"
        raise RequestError(f"inputs: got {count}; allowed: a list of one tensor, named {INPUT!r}")
    one = _check_object(inputs[0], "inputs[0]")
    _refuse_unknown(one, ("name", "shape", "datatype", "parameters", "data"), "inputs[0]")
    if one.get("name") != INPUT:
        raise RequestError(f"inputs[0].name: got {str(one.get('name'))[:60]!r}; allowed: {INPUT!r}")
    shape = one.get("shape")
    if isinstance(shape, list) and shape and type(shape[0]) is int and shape[0] > limits.rows:
        raise TooLarge(f"inputs[0].shape: got {shape[0]} rows; allowed: {limits.rows} a request; send several")
    wanted = signature.shape
    if wanted is not None and isinstance(shape, list) and tuple(shape[1:]) != wanted:
        raise RequestError(f"inputs[0].shape: got {str(shape)[:60]}; allowed: {['N', *wanted]}")
    found = values_of(one, "inputs[0]", behind)
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
    if dtype.kind != "b":
        limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        if found.min() < limits.min or found.max() > limits.max:
            raise RequestError(
                f"inputs[0]: got values from {found.min()} to {found.max()}; allowed: what {dtype} holds, {limits.min} "
                f"to {limits.max}"
            )
    return found.astype(dtype)
