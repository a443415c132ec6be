"""The OpenAPI schema of inference requests and replies, which the routes alone do not describe."""

from typing import Any

from trainwright.serve.http.encoding import ENCODINGS
from trainwright.serve.http.infer_request import INPUT
from trainwright.serve.http.tensors import DATATYPES, HEADER_LENGTH, SIZE

__all__ = ["error_responses", "infer_schema"]

_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_WORDS = {
    400: "A field that does not fit: which, what it holds, what is allowed.",
    401: "A token is needed.",
    403: "A page of another origin asked.",
    404: "Another ensemble or version is served here.",
    408: "The body did not come in time.",
    413: "Too many bytes or rows.",
    415: "Another content type or encoding.",
    429: "The queue is full; ask again after Retry-After.",
    503: "Not ready, ending, or too few members; ask again after Retry-After.",
    504: "The deadline passed before enough members had answered.",
}
_NUMBERS: dict[str, Any] = {
    "description": "Values, flat in row-major order or nested as `shape` says.",
    "type": "array",
    "items": {},
}
_TENSOR = {
    "name": {"type": "string", "const": INPUT},
    "shape": {"type": "array", "minItems": 1, "maxItems": 32, "items": {"type": "integer", "minimum": 1}},
    "datatype": {"enum": list(DATATYPES)},
}
_REQUEST = {
    "type": "object",
    "required": ["inputs"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string"},
        "inputs": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "shape", "datatype"],
                "additionalProperties": False,
                "properties": {
                    **_TENSOR,
                    "data": _NUMBERS,
                    "parameters": {
                        "type": "object",
                        "properties": {SIZE: {"type": "integer", "minimum": 1}},
                    },
                },
            },
        },
        "outputs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string"},
                    "parameters": {
                        "type": "object",
                        "properties": {"binary_data": {"type": "boolean"}},
                    },
                },
            },
        },
        "parameters": {
            "description": "Others than these are ignored, and named in the reply's `parameters_ignored`.",
            "type": "object",
            "properties": {
                "return_members": {"type": "boolean"},
                "return_uncertainty": {"type": "boolean"},
                "trace": {"type": "boolean"},
                "binary_data_output": {"type": "boolean"},
                "deadline_ms": {"type": "number", "exclusiveMinimum": 0, "maximum": 86_400_000},
                "max_members": {"type": "integer", "minimum": 1},
            },
        },
    },
}
_REPLY = {
    "type": "object",
    "required": ["model_name", "model_version", "parameters", "outputs"],
    "properties": {
        "id": {"type": "string"},
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "parameters": {"type": "object"},
        "outputs": {"type": "array", "items": {"type": "object", "required": ["name", "shape", "datatype"]}},
    },
}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what the statuses mean, each with its JSON object."""
    return {
        status: {"description": _WORDS[status], "content": {"application/json": {"schema": _ERROR}}}
        for status in statuses
    }


def infer_schema(*names: str) -> dict[str, Any]:
    """Return what an inference request is, to a path with these names in it."""
    in_path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    return {**_INFER, "parameters": [*in_path, *_HEADERS]}


_LENGTH = {
    "name": HEADER_LENGTH,
    "in": "header",
    "required": False,
    "description": "Bytes of the JSON part, if binary tensors follow it.",
    "schema": {"type": "integer", "minimum": 0},
}
_HEADERS = (
    _LENGTH,
    {
        "name": "Content-Encoding",
        "in": "header",
        "required": False,
        "description": "How the body is compressed; Accept-Encoding asks for a reply so.",
        "schema": {"enum": [*ENCODINGS, "identity"]},
    },
)
_INFER: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _REQUEST},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    },
    "responses": {
        "200": {
            "description": "The answer; header X-Trainwright-Degraded where a member that was asked for is missing.",
            "content": {
                "application/json": {"schema": _REPLY},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            },
        }
    },
}
