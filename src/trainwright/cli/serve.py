"""`trainwright serve ...`: place an ensemble on devices, answer requests with it, and load it."""

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli.command import EnsembleFolder, Nodes, PlanFile, Result, TokenFile, Trust, make_group, options_of
from trainwright.cli.formatting import print_table
from trainwright.cli.inputs import find_cluster
from trainwright.cli.workflow.allocation import AllocationStage, show_plan
from trainwright.cli.workflow.deployment import show_address
from trainwright.ensemble import Ensemble
from trainwright.errors import InputError
from trainwright.http_security import token_for
from trainwright.integrations.ray_serve import RayService
from trainwright.serve import Deployment, DeploymentPlan, DeploymentSettings, Options, Server
from trainwright.serve import allocate as find_placement
from trainwright.serve.http.load import LoadResult, LoadTest
from trainwright.serve.placement.allocate import allocate_or_pack
from trainwright.serve.service import Service
from trainwright.validators import check, number, one_of

__all__ = ["app"]

_EnsembleName = Annotated[str, typer.Option("--name", help="Of the ensemble in the addresses.")]


@options_of(AllocationStage)
def allocate(
    ensemble: EnsembleFolder,
    *,
    changes: dict[str, Any],
    cluster: Annotated[
        list[str] | None, typer.Option(help="Simulated: a preset or a .toml or .yaml file; may be repeated.")
    ] = None,
    nodes: Nodes = None,
    trust: Trust = False,
    out: PlanFile = None,
) -> Result:
    """Find which member runs where, with which batch size; say what is expected and, if it was run, measured."""
    settings = AllocationStage(**changes)
    clusters = [find_cluster(name, nodes) for name in cluster or ()]
    # Simulated devices take the place of those of this machine, unless both are asked for.
    devices = settings.devices if "devices" in changes or not clusters else None
    plan = find_placement(
        Ensemble.load(ensemble, trust=trust),
        devices,
        cluster=clusters or None,
        objective=settings.objective,
    )
    show_plan(plan)
    if out is not None:
        print(f"plan: {plan.save(out)}")
    return Result({**plan.to_json(), "out": None if out is None else str(out)})


@options_of(DeploymentSettings, "deadline_ms", "queue_rows", "strict", strict="--strict")
def run(
    ensemble: EnsembleFolder,
    *,
    devices: Annotated[str | None, typer.Option(help="Such as cuda:0,cpu:0-7.")] = None,
    plan: Annotated[Path | None, typer.Option(help="What serve allocate --out wrote.")] = None,
    slo_ms: Annotated[float | None, typer.Option(help="The placement that answers most within it.")] = None,
    changes: dict[str, Any],
    trust: Trust = False,
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    host: Annotated[str, typer.Option(help="Beyond loopback a token is needed.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any that is free.")] = 8000,
    token_file: TokenFile = None,
    name: _EnsembleName = "ensemble",
    drain: Annotated[float, typer.Option(help="Seconds for admitted requests at the end.")] = 30.0,
) -> Result:
    """Serve an ensemble over HTTP (Open Inference Protocol, version 2) until SIGTERM or Ctrl-C; twice ends it at once.

    Without a plan the members are timed and a placement is searched for, as `serve allocate` does, which takes
    seconds; members that left no sample batch are placed by size alone.
    """
    check(engine, one_of("local", "ray"), "--engine")
    check(drain, number(minimum=0, of="seconds"), "--drain")
    settings = DeploymentSettings(**changes)
    token = token_for(host, token_file)
    # The networks' factories may be modules of the current folder.
    sys.path.append(str(Path.cwd()))
    loaded = Ensemble.load(ensemble, trust=trust)
    placed = _place_members(loaded, plan, devices, slo_ms)
    service: Service
    if engine == "ray":
        print("ray: on one machine it is slower than --engine local, by design; it is for several")
        service = RayService(loaded, placed, settings=settings)
    else:
        service = Deployment(loaded, placed, settings=settings).start()
    server = Server(service, host=host, port=port, token=token, name=name)
    content = server.run(drain_seconds=drain, on_ready=show_address)
    _show_summary(content)
    return Result(content)


def _place_members(ensemble: Ensemble, file: Path | None, devices: str | None, slo_ms: float | None) -> DeploymentPlan:
    if file is not None:
        plan = DeploymentPlan.load(file)
        plan.check(ensemble, devices)
        return plan
    # A latency that must be kept is part of what is searched for.
    objective = "throughput" if slo_ms is None else f"throughput@{slo_ms:g}"
    plan = allocate_or_pack(ensemble, devices or "cpu", objective=objective)
    rates = plan.measured or plan.expected
    expected = f", {rates['value']:,.0f} rows a second expected" if rates else " by size alone"
    where = "in this process" if plan.in_process else f"in {len(plan.instances)} processes"
    print(f"placed: {len(plan.units)} units {where}{expected}")
    return plan


def _show_summary(content: Any) -> None:
    requests = ", ".join(f"{count} with status {status}" for status, count in sorted(content["requests"].items()))
    print(f"requests: {requests or 'none'}; rows: {content['rows']}; degraded: {content['degraded']}")


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
    name: _EnsembleName = "ensemble",
    token_file: TokenFile = None,
) -> Result:
    """Send requests at times drawn beforehand; a latency counts from when its request was to be sent.

    Exit 1 if an answer differs from the reference.
    """
    # The factories of the reference's networks may be modules of the current folder.
    sys.path.append(str(Path.cwd()))
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


app = make_group(
    "serve",
    "Place an ensemble on devices, answer requests with it, and load it.",
    {
        allocate: "Find which member runs where, with which batch size.",
        run: "Serve an ensemble over HTTP (Open Inference Protocol).",
        load: "Send requests at times drawn beforehand, and measure.",
    },
)
