"""`trainwright serve load URL`: ask a served ensemble at a rate of your own, and see its latencies."""

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli.command import Result
from trainwright.cli.formatting import print_table
from trainwright.cli.options import TokenFile, Trust, options_of
from trainwright.ensemble import Ensemble
from trainwright.errors import InputError
from trainwright.http_security import token_for
from trainwright.serve import Options
from trainwright.serve.http.load import LoadResult, LoadTest

__all__ = ["load"]


@options_of(
    LoadTest, "rate", "kind", "seconds", "warm_up_seconds", "clients", kind="--arrivals", warm_up_seconds="--warm-up"
)
def load(
    url: Annotated[str, typer.Argument(help="Where the server is, such as http://127.0.0.1:8000.")],
    *,
    changes: dict[str, Any],
    rows: Annotated[str, typer.Option(help="Rows of a request, such as 1..8.")] = "1",
    as_json: Annotated[bool, typer.Option("--as-json", help="Send JSON in place of binary tensors.")] = False,
    reference: Annotated[
        Path | None, typer.Option(help="The ensemble's folder: every answer is compared with its own.")
    ] = None,
    trust: Trust = False,
    deadline_ms: Annotated[float | None, typer.Option(help="Of each request.")] = None,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal requests at equal times.")] = 0,
    name: Annotated[str, typer.Option(help="Of the ensemble in the addresses.")] = "ensemble",
    token_file: TokenFile = None,
) -> Result:
    """Send requests at times drawn beforehand; a latency counts from when its request was to be sent.

    Exit 1 if an answer differs from the reference.
    """
    sys.path.append(str(Path.cwd()))  # where the factories of the reference's networks may be
    result = LoadTest(
        rows=_read_range(rows),
        seed=seed,
        binary=not as_json,
        options=Options(deadline_ms=deadline_ms),
        name=name,
        token=token_for("localhost", token_file),
        **changes,
    ).run(url, reference=None if reference is None else Ensemble.load(reference, trust=trust).predict)
    _show_load(result)
    return Result(result.to_json(), status=1 if result.wrong else 0)


def _read_range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", text.strip())
    if found is None:
        raise InputError(f"--rows: got {text!r}; allowed: a number such as 8, or a range such as 1..8")
    return int(found[1]), int(found[2] or found[1])


def _show_load(result: LoadResult) -> None:
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
