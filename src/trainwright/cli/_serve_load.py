"""`trainwright serve load URL`: ask a served ensemble at a rate of your own, and see its latencies."""

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli._json import print_json
from trainwright.cli.formatting import print_table
from trainwright.ensemble import Ensemble
from trainwright.errors import InputError
from trainwright.http_security import token_for
from trainwright.serve import Options
from trainwright.serve.http.load import LoadResult, LoadTest

__all__ = ["load"]


def load(
    url: Annotated[str, typer.Argument(help="Where the server is, such as http://127.0.0.1:8000.")],
    *,
    rate: Annotated[float, typer.Option("--rate", help="Requests a second.")] = 100.0,
    arrivals: Annotated[str, typer.Option("--arrivals", help="poisson, constant or closed.")] = "poisson",
    rows: Annotated[str, typer.Option("--rows", help="Rows of a request, such as 1..8.")] = "1",
    seconds: Annotated[float, typer.Option("--seconds", help="How long, after the warm-up.")] = 10.0,
    warm_up: Annotated[float, typer.Option("--warm-up", help="Seconds before, not counted.")] = 1.0,
    clients: Annotated[int, typer.Option("--clients", help="Connections at most; those of a closed loop.")] = 64,
    as_json: Annotated[bool, typer.Option("--as-json", help="Send JSON in place of binary tensors.")] = False,
    reference: Annotated[
        Path | None, typer.Option("--reference", help="The ensemble's folder: every answer is compared with its own.")
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help="As in serve run, of the reference.")] = False,
    deadline_ms: Annotated[float | None, typer.Option("--deadline-ms", help="Of each request.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Equal seeds give equal requests at equal times.")] = 0,
    name: Annotated[str, typer.Option("--name", help="Of the ensemble in the addresses.")] = "ensemble",
    token_file: Annotated[Path | None, typer.Option("--token-file", help="Holds the token; chmod 600.")] = None,
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Send requests at times drawn beforehand; a latency counts from when its request was to be sent.

    Exit 1 if an answer differs from the reference.
    """
    sys.path.append(str(Path.cwd()))  # where the factories of the reference's networks may be
    result = LoadTest(
        rate=rate,
        kind=arrivals,
        rows=_format_range(rows),
        seconds=seconds,
        warm_up_seconds=warm_up,
        clients=clients,
        seed=seed,
        binary=not as_json,
        options=Options(deadline_ms=deadline_ms),
        name=name,
        token=token_for("localhost", token_file),
    ).run(url, reference=None if reference is None else Ensemble.load(reference, trust=trust).predict)
    _show_load(result)
    if json:
        print_json(result.to_json())
    if result.wrong:
        raise typer.Exit(1)


def _format_range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", text.strip())
    if found is None:
        raise InputError(f"--rows: got {text!r}; allowed: a number such as 8, or a range such as 1..8")
    return int(found[1]), int(found[2] or found[1])


def _show_load(result: "LoadResult") -> None:
    asked = "as fast as it answers" if result.asked_rate is None else f"{result.asked_rate:.1f} requests/s asked for"
    print(f"{result.requests} requests in {result.seconds:g} s after {result.warm_up_seconds:g} s of warm-up, {asked}")
    print(f"answered: {result.achieved_rate:.1f} requests/s, {result.rows_rate:.1f} rows/s")
    print(f"statuses: {', '.join(f'{status}: {count}' for status, count in sorted(result.statuses.items()))}")
    print_table(
        ("latency, ms", *result.latency_ms),
        [("of answers", *("-" if one is None else f"{one:.2f}" for one in result.latency_ms.values()))],
    )
    if result.degraded_share:
        print(f"degraded: {result.degraded_share:.1%} of the answers")
    if result.checked:
        print(f"wrong: {result.wrong} of {result.checked} answers differ from the reference by more than 1e-6")
    if not result.valid:
        cores = os.cpu_count()
        print(f"not valid: {result.why}; the load was another than asked for ({cores} cores here)")
