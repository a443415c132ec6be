"""The gRPC server of the inference protocol: the same models, checks and sentences as over HTTP, on its own port.

A request becomes the one that HTTP would have brought, with tensors in binary, so that both are read by one function.
`open_inference.json` is the FileDescriptorProto of the part of KServe's and Triton's service that is answered here, in
protobuf's JSON. Generated code would be bound to one range of protobuf's versions, and would put the protocol's names
into the process's one pool, where a client such as tritonclient has put its own already.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from importlib import resources
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from trainwright.errors import NotReady, RequestError, TrainwrightError
from trainwright.http_security import AccessRules
from trainwright.serve.http.app import ABOUT, Application, status_of
from trainwright.serve.http.infer_request import read_request
from trainwright.serve.http.models import check_ready
from trainwright.serve.http.replies import describe_reply, json_of
from trainwright.serve.http.tensors import SIZE
from trainwright.serve.service import Limits

__all__ = ["GrpcServer"]

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class GrpcServer:
    """Answers the protocol's methods from the event loop of the HTTP server, whose application it shares."""

    def __init__(self, application: Application, *, rules: AccessRules, limits: Limits) -> None:
        self._application, self._rules, self._limits = application, rules, limits
        sizes = [(f"grpc.max_{way}_message_length", limits.body_bytes) for way in ("receive", "send")]
        self._server = grpc.aio.server(options=[*sizes, ("grpc.so_reuseport", 0)])
        service = _make_pool().FindServiceByName("inference.GRPCInferenceService")
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(
                self._guarded(method.name, _find_message(method.output_type.name)),
                request_deserializer=_find_message(method.input_type.name).FromString,
                response_serializer=lambda response: response.SerializeToString(),
            )
            for method in service.methods
        }
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service.full_name, handlers)])

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port."""
        found: int = self._server.add_insecure_port(f"{host}:{port}")
        await self._server.start()
        return found

    async def stop(self, seconds: float) -> None:
        """Close, after pending replies or so many seconds."""
        await self._server.stop(seconds)

    def _guarded(self, name: str, response: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        """Return what answers a method: after the token, the answer, or the status and the sentence of an error."""

        async def answered(request: Any, context: Any) -> Any:
            status, text = 200, ""
            try:
                self._check_token(name, context)
                return response(**await self._answer(name, request))
            except _Refused as refusal:
                status, text = refusal.args
            except Exception as error:  # noqa: BLE001 - whatever it is, it is answered
                status = status_of(error)
                text = str(error) if isinstance(error, TrainwrightError) else "the server has a defect; see its log"
            finally:
                self._application.metrics.requests["grpc", status] += 1
            return await context.abort(_CODES.get(status, grpc.StatusCode.INTERNAL), text)

        return answered

    def _check_token(self, name: str, context: Any) -> None:
        """Refuse a call without the token, by the rules of HTTP: a probe needs none."""
        path = {"ServerLive": "/v2/health/live", "ServerReady": "/v2/health/ready"}.get(name, f"/{name}")
        given = [
            (b"authorization", value.encode()) for key, value in context.invocation_metadata() if key == "authorization"
        ]
        # No browser speaks gRPC, so there is no host or origin to check.
        refused = self._rules.refuse_request(
            {"method": "POST", "path": path, "headers": [(b"host", b"127.0.0.1"), *given]}
        )
        if refused is not None:
            raise _Refused(refused[0], "a token is needed: give it as metadata, authorization: Bearer TOKEN")

    async def _answer(self, name: str, request: Any) -> dict[str, Any]:
        """Return the fields of the answer to a method."""
        models = self._application.models
        match name:
            case "ServerLive":
                return {"live": True}
            case "ServerReady":
                return {"ready": _passes(self._application.check_ready)}
            case "ModelReady":
                model = models.find(request.name, request.version or None)
                return {"ready": _passes(lambda: check_ready(model))}
            case "ServerMetadata":
                return dict(ABOUT)
            case "ModelMetadata":
                found = models.find(request.name, request.version or None).metadata()
                return {**found, "versions": models.versions_of(request.name)}
            case "RepositoryIndex":
                return {"models": models.index()}
            case "RepositoryModelLoad" | "RepositoryModelUnload":
                await self._application.change_model(request.model_name, name.removeprefix("RepositoryModel").lower())
                return {}
            case _:
                return await self._infer(request)

    async def _infer(self, request: Any) -> dict[str, Any]:
        application = self._application
        application.check_draining()
        model = application.models.find(request.model_name, request.model_version or None)
        head = json_of(_head_of(request))
        asked = read_request(
            b"".join([head, *request.raw_input_contents]), str(len(head)), model.signature, self._limits
        )
        future = model.service.submit(asked.x, asked.options)
        # The model stays until its reply, even if another takes its name; a caller who leaves cancels the request.
        model.leases += 1
        try:
            answer = await asyncio.wrap_future(future)
        finally:
            model.leases -= 1
        reply, tensors = describe_reply(
            answer, asked, name=model.name, version=model.version, threshold=model.service.ensemble.threshold
        )
        outputs = [{key: tensor[key] for key in ("name", "datatype", "shape")} for tensor in reply["outputs"]]
        parameters = {key: _parameter_of(value) for key, value in reply["parameters"].items()}
        return {**reply, "parameters": parameters, "outputs": outputs, "raw_output_contents": tensors}


class _Refused(Exception):
    """A status of HTTP and a sentence."""


@cache
def _make_pool() -> Any:
    text = resources.files("trainwright.serve.http").joinpath("open_inference.json").read_text(encoding="utf-8")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(json_format.Parse(text, descriptor_pb2.FileDescriptorProto()))
    return pool


def _find_message(name: str) -> Any:
    """Return the class of a message by its name in the protocol."""
    return message_factory.GetMessageClass(_make_pool().FindMessageTypeByName(f"inference.{name}"))


def _passes(check: Callable[[], object]) -> bool:
    """Say whether a check raises no NotReady."""
    try:
        check()
    except NotReady:
        return False
    return True


def _head_of(request: Any) -> dict[str, Any]:
    """Return the JSON part of the same request over HTTP, with every output in binary."""
    inputs = []
    for place, tensor in enumerate(request.inputs):
        one = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        one["parameters"] = _values_of(tensor.parameters)
        if request.raw_input_contents:
            if place >= len(request.raw_input_contents):
                raise RequestError(f"raw_input_contents: got {place}; allowed: one for each input, or none")
            one["parameters"][SIZE] = len(request.raw_input_contents[place])
        else:
            one["data"] = [value for _, values in tensor.contents.ListFields() for value in values]
        inputs.append(one)
    head = {"inputs": inputs, "parameters": {**_values_of(request.parameters), "binary_data_output": True}}
    if request.outputs:
        head["outputs"] = [
            {"name": one.name, "parameters": {**_values_of(one.parameters), "binary_data": True}}
            for one in request.outputs
        ]
    return {**head, "id": request.id} if request.id else head


def _values_of(parameters: Any) -> dict[str, Any]:
    return {
        name: getattr(one, one.WhichOneof("parameter_choice") or "string_param") for name, one in parameters.items()
    }


def _parameter_of(value: object) -> Any:
    """Return a parameter of a reply; what is no single value is told as JSON."""
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    kind = kinds.get(type(value))
    return _find_message("InferParameter")(**({kind: value} if kind else {"string_param": json_of(value).decode()}))
