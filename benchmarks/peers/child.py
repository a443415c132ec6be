"""The child's side of a peer: one JSON line in, one JSON line out, so that each peer lives in its own environment.

    python -m benchmarks.peers.child optuna-tpe

| in                                           | out                                                             |
|----------------------------------------------|-----------------------------------------------------------------|
| {"do": "open", "columns": [..], "seed": 0,   | {"version": "optuna 5.0.0; ..."}: what makes two runs alike     |
|  "options": {}}                              |                                                                 |
| {"do": "load", "rows": [..], "losses": [..]} | {}: finished trials told in the cheapest way that the peer has  |
| {"do": "ask", "count": 1}                    | {"tokens": [..], "rows": [[..]], "seconds": 0.002}              |
| {"do": "tell", "tokens": [..], "losses": [..]} | {"seconds": 0.001}: losses are minimised                      |
| {"do": "start"}                              | {"trial": 3, "row": [..], "seconds": 0.002}: new, or to go on   |
| {"do": "report", "trial": 3, "epoch": 1,     | {"goes_on": false, "seconds": 0.001}: its worker starts another |
|  "loss": 0.5}                                |                                                                 |

A search over configurations has `load`, `ask` and `tell`, one over trials that report has `start` and `report`.
Seconds are taken around the peer's own calls, so no pipe and no JSON is charged to anybody.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

from benchmarks.peers.columns import Column

__all__ = ["Search", "main"]

Row = list[float]


class Search(Protocol):
    """What an adapter gives: one search over columns, of rows or of trials; a token names a row until it is told."""

    version: str

    def load(self, rows: Sequence[Row], losses: Sequence[float]) -> None:
        """Take finished trials."""

    def ask(self, count: int) -> list[tuple[Any, Row]]:
        """Propose `count` rows, each with its token."""

    def tell(self, tokens: Sequence[Any], losses: Sequence[float]) -> None:
        """Take the losses of asked rows."""

    def start(self) -> tuple[int, Row] | None:
        """Return the trial that a free worker trains, new or paused, and its row; None at the end."""

    def report(self, trial: int, epoch: int, loss: float) -> bool:
        """Take the loss after an epoch; return whether the trial goes on at once."""


def main(method: str) -> None:
    """Serve one method until the input ends."""
    # The answers own the real standard output; whatever a library prints goes to the error stream.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module = import_module("benchmarks.peers.with_" + method.split("-", maxsplit=1)[0])
    make: Callable[..., Search] = module.METHODS[method]
    search: Search | None = None
    asked: dict[int, Any] = {}
    count = 0
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        if request["do"] == "open":
            search = make(Column.of(request["columns"]), request["seed"], **request["options"])
            asked, count = {}, 0
            answer["version"] = search.version
        elif search is None:
            raise SystemExit("the first request of a peer must be 'open'")
        elif request["do"] == "load":
            search.load(request["rows"], request["losses"])
        elif request["do"] == "ask":
            start = time.perf_counter()
            proposals = search.ask(request["count"])
            answer["seconds"] = time.perf_counter() - start
            answer["tokens"] = list(range(count, count + len(proposals)))
            answer["rows"] = [row for _, row in proposals]
            asked.update(zip(answer["tokens"], [token for token, _ in proposals], strict=True))
            count += len(proposals)
        elif request["do"] == "start":
            start = time.perf_counter()
            answer["trial"], answer["row"] = search.start() or (None, [])
            answer["seconds"] = time.perf_counter() - start
        elif request["do"] == "report":
            start = time.perf_counter()
            answer["goes_on"] = search.report(request["trial"], request["epoch"], request["loss"])
            answer["seconds"] = time.perf_counter() - start
        else:
            tokens = [asked.pop(token) for token in request["tokens"]]
            start = time.perf_counter()
            search.tell(tokens, request["losses"])
            answer["seconds"] = time.perf_counter() - start
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
