"""`trainwright serve run ENSEMBLE`: answer requests over HTTP until told to end."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli._json import print_json
from trainwright.ensemble import Ensemble
from trainwright.errors import InputError
from trainwright.http_security import token_for
from trainwright.integrations.ray_serve import RayService
from trainwright.serve import Deployment, DeploymentPlan, DeploymentSettings, Server
from trainwright.serve.placement.allocate import allocate_or_pack
from trainwright.serve.service import Service

__all__ = ["run"]

_ENGINES = ("local", "ray")


def run(
    ensemble: Annotated[Path, typer.Argument(help="A folder that Ensemble.save wrote.")],
    *,
    devices: Annotated[str | None, typer.Option("--devices", help="Such as cuda:0,cpu:0-7.")] = None,
    plan: Annotated[Path | None, typer.Option("--plan", help="What serve allocate --out wrote.")] = None,
    slo_ms: Annotated[float | None, typer.Option("--slo-ms", help="The placement that answers most within it.")] = None,
    deadline_ms: Annotated[float | None, typer.Option("--deadline-ms", help="Of requests that give none.")] = None,
    queue_rows: Annotated[int | None, typer.Option("--queue-rows", help="Rows that may wait.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Never answer without a member: 503 instead.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Load what needs more than known operators, as programs with your rights.")
    ] = False,
    engine: Annotated[str, typer.Option("--engine", help="local or ray.")] = "local",
    host: Annotated[str, typer.Option("--host", help="Beyond loopback a token is needed.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0 takes any that is free.")] = 8000,
    token_file: Annotated[Path | None, typer.Option("--token-file", help="Holds the token; chmod 600.")] = None,
    name: Annotated[str, typer.Option("--name", help="Of the ensemble in the addresses.")] = "ensemble",
    drain: Annotated[float, typer.Option("--drain", help="Seconds for admitted requests at the end.")] = 30.0,
    json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
) -> None:
    """Serve an ensemble over HTTP (Open Inference Protocol, version 2) until SIGTERM or Ctrl-C; twice ends it at once.

    Without a plan the members are timed and a placement is searched for, as `serve allocate` does, which takes
    seconds; members that left no sample batch are placed by size alone.
    """
    if engine not in _ENGINES:
        raise InputError(f"--engine: got {engine!r}; allowed: {', '.join(_ENGINES)}")
    if not drain >= 0:
        raise InputError(f"--drain: got {drain}; allowed: seconds >= 0")
    given = {"deadline_ms": deadline_ms, "queue_rows": queue_rows, "strict": strict}
    settings = DeploymentSettings(**{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]
    token = token_for(host, token_file)
    sys.path.append(str(Path.cwd()))  # where the networks' factories may be
    loaded = Ensemble.load(ensemble, trust=trust)
    placed = _place_members(loaded, plan, devices, slo_ms)
    service = _start_service(loaded, placed, settings, engine)
    server = Server(service, host=host, port=port, token=token, name=name)
    content = server.run(drain_seconds=drain, on_ready=_show_address)
    _show_summary(content)
    if json:
        print_json(content)


def _place_members(
    ensemble: "Ensemble", file: Path | None, devices: str | None, slo_ms: float | None
) -> "DeploymentPlan":
    if file is None:
        objective = "throughput" if slo_ms is None else f"throughput@{slo_ms:g}"
        plan = allocate_or_pack(ensemble, "cpu" if devices is None else devices, objective=objective)
        rates = plan.measured or plan.expected
        told = f", {rates['value']:,.0f} rows a second expected" if rates else " by size alone"
        where = "in this process" if plan.in_process else f"in {len(plan.instances)} processes"
        print(f"placed: {len(plan.units)} units {where}{told}")
        return plan
    plan = DeploymentPlan.load(file)
    plan.check(ensemble, devices)
    return plan


def _start_service(ensemble: "Ensemble", plan: "DeploymentPlan", settings: Any, engine: str) -> "Service":
    if engine == "local":
        return Deployment(ensemble, plan, settings=settings).start()
    print("ray: on one machine it is slower than --engine local, by design; it is for several")
    return RayService(ensemble, plan, settings=settings)


def _show_address(server: "Server") -> None:
    entry = f"{server.url}/?token={server.token}" if server.token else server.url
    print(f"ready: {entry}", flush=True)


def _show_summary(content: Any) -> None:
    requests = ", ".join(f"{count} with status {status}" for status, count in sorted(content["requests"].items()))
    print(f"requests: {requests or 'none'}; rows: {content['rows']}; degraded: {content['degraded']}")
