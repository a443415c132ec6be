"""`trainwright serve ...`: place an ensemble on devices and answer requests with it."""

import sys
from pathlib import Path
from typing import Annotated, Any

from trainwright.cli.command import EnsembleFolder, Nodes, Option, PlanFile, Result, TokenFile, make_group, options_of
from trainwright.cli.inputs import find_cluster
from trainwright.cli.workflow.serving import AllocationStage, show_address, show_plan
from trainwright.ensemble import Ensemble
from trainwright.http_security import token_for
from trainwright.integrations.ray_serve import RayService
from trainwright.report.formatting import count
from trainwright.serve import Deployment, DeploymentPlan, DeploymentSettings, ModelFolders, Server
from trainwright.serve import allocate as find_placement
from trainwright.serve.placement.allocate import allocate_or_pack
from trainwright.serve.placement.devices import parse_devices, share_devices
from trainwright.serve.service import Service
from trainwright.validators import check, number, one_of

__all__ = ["app"]


@options_of(AllocationStage)
def allocate(
    ensemble: EnsembleFolder,
    *,
    changes: dict[str, Any],
    cluster: Annotated[list[str] | None, Option(help="Simulated: a preset or a .toml file; may be repeated.")] = None,
    nodes: Nodes = None,
    out: PlanFile = None,
) -> Result:
    """Place members on devices with batch sizes; print the expected and, if run, measured throughput."""
    settings = AllocationStage(**changes)
    clusters = [find_cluster(name, nodes) for name in cluster or ()]
    # Simulated devices take the place of those of this machine, unless both are asked for.
    devices = settings.devices if "devices" in changes or not clusters else None
    plan = find_placement(Ensemble.load(ensemble), devices, cluster=clusters or None)
    show_plan(plan)
    if out is not None:
        print(f"plan: {plan.save(out)}")
    return Result({**plan.to_json(), "out": None if out is None else str(out)})


@options_of(DeploymentSettings, "deadline_ms", "queue_rows", "strict", strict="--strict")
def run(
    ensemble: EnsembleFolder,
    *,
    devices: Annotated[str | None, Option(help="Such as cuda:0,cpu:0-7.")] = None,
    plan: Annotated[Path | None, Option(help="What serve allocate --out wrote.")] = None,
    changes: dict[str, Any],
    engine: Annotated[str, Option(help="local or ray.")] = "local",
    host: Annotated[str, Option(help="Beyond loopback a token is needed.")] = "127.0.0.1",
    port: Annotated[int, Option(help="0 takes any that is free.")] = 8000,
    grpc_port: Annotated[int | None, Option(help="For the protocol over gRPC too.")] = None,
    token_file: TokenFile = None,
    name: Annotated[str, Option(help="Of the ensemble in the addresses.")] = "ensemble",
    drain: Annotated[float, Option(help="Seconds for admitted requests at the end.")] = 30.0,
) -> Result:
    """Serve an ensemble over HTTP (Open Inference Protocol, version 2) until SIGTERM or Ctrl-C; twice ends it at once.

    The folder may also hold exports as NAME or NAME/VERSION: all are served, and loaded again by the protocol's
    repository extension. Without a plan the members are timed and a placement is searched for, as `serve allocate`
    does, which takes seconds; members that left no sample batch are placed by size alone.
    """
    check(engine, one_of("local", "ray"), "--engine")
    check(drain, number(minimum=0, of="seconds"), "--drain")
    settings = DeploymentSettings(**changes)
    token = token_for(host, token_file)
    # The networks' factories may be modules of the current folder.
    sys.path.append(str(Path.cwd()))

    def start_service(folder: Path) -> Service:
        loaded = Ensemble.load(folder)
        placed = _place_members(loaded, plan, devices, 1 if engine == "ray" else len(folders.names()))
        if engine == "ray":
            print("ray: on one machine it is slower than --engine local, by design; it is for several")
            return RayService(loaded, placed, settings=settings)
        return Deployment(loaded, placed, settings=settings).start()

    folders = ModelFolders(ensemble, start_service, name=name)
    # Replicas on Ray are not replaced while they answer.
    service = start_service(ensemble) if engine == "ray" else folders
    server = Server(service, host=host, port=port, token=token, name=name, grpc_port=grpc_port)
    content = server.run(drain_seconds=drain, on_ready=show_address)
    _show_summary(content)
    return Result(content)


def _place_members(ensemble: Ensemble, file: Path | None, devices: str | None, models: int) -> DeploymentPlan:
    if file is not None:
        plan = DeploymentPlan.load(file)
        plan.check(ensemble, devices)
        return plan
    # Of several models each has its share of the cores.
    plan = allocate_or_pack(ensemble, share_devices(parse_devices(devices or "cpu"), models))
    rates = plan.measured or plan.expected
    expected = f", {rates['value']:,.0f} rows a second expected" if rates else " by size alone"
    where = "in this process" if plan.in_process else f"in {len(plan.instances)} processes"
    print(f"placed: {count(len(plan.units), 'unit')} {where}{expected}")
    return plan


def _show_summary(content: Any) -> None:
    requests = ", ".join(f"{count} with status {status}" for status, count in sorted(content["requests"].items()))
    print(f"requests: {requests or 'none'}; rows: {content['rows']}; degraded: {content['degraded']}")


app = make_group(
    "serve",
    "Place an ensemble on devices and answer requests with it.",
    {
        allocate: "Find which member runs where, with which batch size.",
        run: "Serve an ensemble over HTTP (Open Inference Protocol).",
    },
)
