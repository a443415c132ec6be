"""The messages of the protocol's gRPC form, made from their description when they are first needed.

`open_inference.json` is the FileDescriptorProto of the part of KServe's and Triton's service that is answered here, in
protobuf's JSON. Generated code would be bound to one range of protobuf's versions, and would put the protocol's names
into the process's one pool, where a client such as tritonclient has put its own already.
"""

from functools import cache
from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

__all__ = ["find_message", "find_service"]


@cache
def _make_pool() -> Any:
    text = resources.files("trainwright.serve.grpc").joinpath("open_inference.json").read_text(encoding="utf-8")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(json_format.Parse(text, descriptor_pb2.FileDescriptorProto()))
    return pool


def find_service() -> Any:
    """Return the description of the service, with its methods."""
    return _make_pool().FindServiceByName("inference.GRPCInferenceService")


def find_message(name: str) -> Any:
    """Return the class of a message by its name in the protocol."""
    return message_factory.GetMessageClass(_make_pool().FindMessageTypeByName(f"inference.{name}"))
