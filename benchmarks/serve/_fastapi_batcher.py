"""An in-process batcher on FastAPI, as a first server of small networks: `python _fastapi_batcher.py FOLDER PORT`.

FOLDER holds `networks.pt`, which is [(width, depth, weights)] and what each network weighs in the mean. It
takes and gives the one input and output of the benchmark as JSON of the Open Inference Protocol.
"""

import asyncio
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["PATH", "load_networks", "mean_of", "reply_of"]

_INPUTS, _OUTPUTS = 256, 10
PATH = "/v2/models/ensemble/infer"


def load_networks(folder: str) -> tuple[list[nn.Module], list[float]]:
    torch.set_num_threads(1)
    told, shares = torch.load(Path(folder, "networks.pt"))
    networks: list[nn.Module] = []
    for width, depth, weights in told:
        sizes = [_INPUTS, *[width] * depth]
        layers = [layer for one, other in itertools.pairwise(sizes) for layer in (nn.Linear(one, other), nn.ReLU())]
        networks.append(nn.Sequential(*layers, nn.Linear(width, _OUTPUTS)).eval())
        networks[-1].load_state_dict(weights)
    return networks, shares


def mean_of(networks: list[nn.Module], shares: list[float], x: torch.Tensor) -> Any:
    with torch.inference_mode():
        outputs = [network(x).softmax(1) * share for network, share in zip(networks, shares, strict=True)]
        return sum(outputs[1:], outputs[0]).numpy()


def reply_of(found: Any) -> dict[str, Any]:
    output = {"name": "prediction", "datatype": "FP32", "shape": list(found.shape), "data": found.ravel().tolist()}
    return {"model_name": "ensemble", "outputs": [output]}


def batcher(folder: str, port: int) -> None:
    """Serve by FastAPI: requests that the event loop has read by then are computed as one batch, on the loop."""
    import uvicorn
    from fastapi import FastAPI, Request, Response

    networks, shares = load_networks(folder)
    app = FastAPI()
    waiting: list[tuple[Any, asyncio.Future[Any]]] = []

    def compute() -> None:
        taken = waiting.copy()
        waiting.clear()
        found = mean_of(networks, shares, torch.from_numpy(np.concatenate([x for x, _ in taken])))
        start = 0
        for x, future in taken:
            future.set_result(found[start : start + len(x)])
            start += len(x)

    @app.post(PATH)
    async def infer(request: Request) -> Response:
        told = json.loads(await request.body())["inputs"][0]
        future = asyncio.get_running_loop().create_future()
        waiting.append((np.array(told["data"], "f4").reshape(told["shape"]), future))
        if len(waiting) == 1:
            asyncio.get_running_loop().call_soon(compute)
        return Response(json.dumps(reply_of(await future)), media_type="application/json")

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


if __name__ == "__main__":
    batcher(sys.argv[1], int(sys.argv[2]))
