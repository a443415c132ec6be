"""The servers that are compared, each as a user would start it: `python _http_servers.py NAME FOLDER PORT`.

All speak the same protocol for the one input and output that the benchmark has: binary tensors in, binary tensors out.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

_NAME = "Inference-Header-Content-Length"
_METADATA = {"name": "ensemble", "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 256]}]}


def _rows(body: bytes, length: str) -> Any:
    """Return the rows of a request."""
    told = json.loads(body[: int(length)])["inputs"][0]
    return np.frombuffer(body[int(length) :], dtype="<f4").reshape(told["shape"])


def _reply(found: Any) -> tuple[bytes, str]:
    """Return body and header of a reply."""
    output: dict[str, Any] = {"name": "prediction", "datatype": "FP64", "shape": list(found.shape)}
    parameters = {"members_used": [0], "members_missing": {}, "weight_used": 1.0}
    output["parameters"] = {"binary_data_size": found.nbytes}
    head = json.dumps({"model_name": "ensemble", "parameters": parameters, "outputs": [output]}).encode()
    return head + np.ascontiguousarray(found).tobytes(), str(len(head))


def trainwright(folder: str, port: int) -> None:
    """Serve by a deployment, all members in one worker: the machine has few cores."""
    from benchmarks.serve._ensembles import plan

    from trainwright.ensemble import Ensemble
    from trainwright.serve import Deployment

    found = Ensemble.load(folder)
    with Deployment(found, plan(found, batch=128)) as service:
        service.run(port=port)


def fastapi(folder: str, port: int) -> None:
    """Serve by calling the members in turn."""
    import torch
    import uvicorn
    from fastapi import FastAPI, Request, Response

    from trainwright.ensemble import Ensemble

    torch.set_num_threads(1)
    found = Ensemble.load(folder)
    app = FastAPI()

    @app.get("/v2/health/ready")
    async def ready() -> dict[str, bool]:
        return {"ready": True}

    @app.get("/v2/models/ensemble")
    async def metadata() -> dict[str, Any]:
        return _METADATA

    def answer(x: Any) -> Any:
        batch = torch.from_numpy(x.copy())
        total = torch.zeros((), dtype=torch.float64)
        with torch.inference_mode():
            for network, weight in zip(found.networks, found.weights, strict=True):
                total = total + weight * network(batch).double().softmax(1)
        return total.numpy()

    @app.post("/v2/models/ensemble/infer")
    async def infer(request: Request) -> Response:
        x = _rows(await request.body(), request.headers[_NAME])
        content, length = _reply(await asyncio.to_thread(answer, x))
        return Response(content, headers={_NAME: length}, media_type="application/octet-stream")

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


def ray_serve(folder: str, port: int) -> None:
    """Serve by a composition: an ingress asks a deployment per member at once, and combines."""
    import signal

    import ray
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response

    from trainwright.ensemble import Ensemble

    class _Member:
        def __init__(self, place: int) -> None:
            import torch

            torch.set_num_threads(1)
            loaded = Ensemble.load(folder)
            self.network, self.weight = loaded.networks[place], loaded.weights[place]

        def __call__(self, x: Any) -> Any:
            import torch

            with torch.inference_mode():
                return self.weight * self.network(torch.from_numpy(x.copy())).double().softmax(1).numpy()

    class _Ingress:
        def __init__(self, *members: Any) -> None:
            self.members = members

        async def __call__(self, request: Request) -> Response:
            if request.method == "GET":
                return JSONResponse({"ready": True} if "health" in request.url.path else _METADATA)
            x = _rows(await request.body(), request.headers[_NAME])
            parts = await asyncio.gather(*[member.remote(x) for member in self.members])
            content, length = _reply(sum(parts))
            return Response(content, headers={_NAME: length}, media_type="application/octet-stream")

    free = {"num_cpus": 0}  # Ray is not to wait for cores
    member: Any = serve.deployment(ray_actor_options=free, max_ongoing_requests=100)(_Member)
    ingress: Any = serve.deployment(ray_actor_options=free, max_ongoing_requests=200)(_Ingress)
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=40)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    count = len(Ensemble.load(folder).members)
    members = [member.options(name=f"member-{place}").bind(place) for place in range(count)]
    serve.run(ingress.bind(*members), route_prefix="/")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    {"trainwright": trainwright, "fastapi": fastapi, "ray-serve": ray_serve}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
