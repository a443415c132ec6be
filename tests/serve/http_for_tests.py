"""A served ensemble for tests of HTTP: real sockets, and a service whose answers are scripted."""

import json
from concurrent.futures import Future

import httpx
import numpy as np
from served_networks import INPUTS, ensemble, inputs

from trainwright.serve import Deployment, DeploymentPlan, Options
from trainwright.serve.http.client import encode

__all__ = ["HTTP", "INFER", "INPUTS", "Scripted", "ask", "body", "ensemble", "inputs", "open_file_count", "values"]

INFER = "/v2/models/ensemble/infer"


# One for all tests: each new client reads the certificates of the world anew.
HTTP = httpx.Client(verify=False, limits=httpx.Limits(max_keepalive_connections=0))  # noqa: S501 -- loopback only


class Scripted(Deployment):
    """Computes here, but does what `script(x, options)` returns: an exception to raise, a Future, or None to go on."""

    script = staticmethod(lambda x, options: None)

    def __init__(self, found, **settings):
        super().__init__(found, DeploymentPlan.simple(found, "cpu", in_process=True), **settings)

    def submit(self, x, options=None):
        told = self.script(x, options)
        if isinstance(told, Exception):
            raise told
        return told if isinstance(told, Future) else super().submit(x, options)


def body(x, **changes):
    """Return an inference request for rows x as a dict, with changes to its tensor, and parameters=, outputs=, id=."""
    outer = {name: changes.pop(name) for name in ("parameters", "outputs", "id") if name in changes}
    tensor = {"name": "input", "datatype": "FP32", "shape": list(x.shape), "data": x.reshape(-1).tolist(), **changes}
    return {"inputs": [{key: value for key, value in tensor.items() if value is not None}], **outer}


def ask(url, x, *, binary=True, token=None, **options):
    """Return the raw reply to rows x."""
    content, headers = encode(np.asarray(x), Options(**options), binary=binary)
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return HTTP.post(url + INFER, content=content, headers=headers)


def values(reply, name="prediction"):
    """Return one output of a JSON reply."""
    told = next(each for each in json.loads(reply.content)["outputs"] if each["name"] == name)
    return np.array(told["data"]).reshape(told["shape"])


def open_file_count():
    """Return how many descriptors this process has open."""
    from pathlib import Path

    return len(list(Path("/proc/self/fd").iterdir()))
