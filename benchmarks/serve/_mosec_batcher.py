"""mosec with the same networks: `FOLDER=... python _mosec_batcher.py --port PORT`.

Its front is a program in Rust; one worker process gets batches of up to 64. It starts its processes by importing this
file again, so the worker's class stands on top and the folder is in the environment.
"""

import os
from typing import Any

import numpy as np
import torch
from _fastapi_batcher import PATH, load_networks, mean_of, reply_of  # type: ignore[import-not-found]
from mosec import Runtime, Server, Worker  # type: ignore[import-not-found]


class Mean(Worker):  # type: ignore[misc]
    """The weighted mean of the networks."""

    def __init__(self) -> None:
        super().__init__()
        self.networks, self.shares = load_networks(os.environ["FOLDER"])

    def forward(self, data: list[Any]) -> list[Any]:
        """Return a reply for each of the requests in a batch."""
        told = [one["inputs"][0] for one in data]
        x = np.concatenate([np.array(one["data"], "f4").reshape(one["shape"]) for one in told])
        return [reply_of(row[None]) for row in mean_of(self.networks, self.shares, torch.from_numpy(x))]


if __name__ == "__main__":
    server = Server()
    server.register_runtime({PATH: [Runtime(Mean, num=1, max_batch_size=64, max_wait_time=1)]})
    server.run()
