"""The messages of the protocol's gRPC form, made from its .proto file when they are first needed.

No generated code: that would be bound to one range of protobuf's versions, and would put the protocol's names into the
process's one pool, where a client such as tritonclient has put its own already.
"""

import re
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["find_message", "list_methods"]

_PACKAGE = "inference"
_METHOD = re.compile(r"rpc (\w+)\((\w+)\) returns \((\w+)\)")


def find_message(name: str) -> Any:
    """Return the class of a message by its name in the protocol."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_make_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def list_methods() -> dict[str, tuple[str, str]]:
    """Return the names of the messages that each method of the service takes and answers."""
    return {name: (request, response) for name, request, response in _METHOD.findall(_read_text())}


def _read_text() -> str:
    return resources.files("trainwright.serve.grpc").joinpath("open_inference.proto").read_text(encoding="utf-8")


@cache
def _make_pool() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool

    file = descriptor_pb2.FileDescriptorProto(name="open_inference.proto", package=_PACKAGE, syntax="proto3")
    text = _read_text()
    words = iter(re.findall(r"[\w.]+|[^\w\s]", text[text.index("message ") :]))
    for _ in words:  # each is the word "message"
        _read_message(words, file.message_type.add())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _read_message(words: Any, message: Any) -> None:
    """Fill a message's descriptor from what follows the word "message", in the part of proto3 that the file uses."""
    message.name, _ = next(words), next(words)
    choice = False
    for word in words:
        if word == "}":
            if not choice:
                return
            choice = False
        elif word == "message":
            _read_message(words, message.nested_type.add())
        elif word == "oneof":
            message.oneof_decl.add(name=next(words))
            choice = next(words) == "{"
        elif word == "map":
            _, key, _, value, _ = (next(words) for _ in range(5))
            name, number = _read_name(words)
            # A map is a list of entries, each a message of its own.
            entry = message.nested_type.add(name="".join(map(str.title, name.split("_"))) + "Entry")
            entry.options.map_entry = True
            _add_field(entry, "key", 1, key)
            _add_field(entry, "value", 2, value)
            _add_field(message, name, number, entry.name, repeated=True)
        else:
            kind = next(words) if word == "repeated" else word
            name, number = _read_name(words)
            field = _add_field(message, name, number, kind, repeated=word == "repeated")
            if choice:
                field.oneof_index = 0


def _read_name(words: Any) -> tuple[str, int]:
    name, _, number, _ = (next(words) for _ in range(4))
    return name, int(number)


def _add_field(message: Any, name: str, number: int, kind: str, *, repeated: bool = False) -> Any:
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
    if kind[0].isupper():
        # Found in the enclosing scopes, as in the file.
        field.type, field.type_name = field.TYPE_MESSAGE, kind
    else:
        field.type = getattr(field, f"TYPE_{kind.upper()}")
    return field
