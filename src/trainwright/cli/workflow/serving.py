"""[allocation]: places members on devices; [deployment]: starts the server, asks once, and compares the answer."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from trainwright.cli.command import print_table
from trainwright.cli.workflow.stage import EXPORT, PLACEMENT, StageOutcome, StudyJob, read_source, take_base
from trainwright.engine.function_reference import load_function
from trainwright.ensemble import Ensemble
from trainwright.ensemble.metrics import Array
from trainwright.errors import InputError, ServeError
from trainwright.http_security import token_for
from trainwright.randomness import rng
from trainwright.serve import Deployment, DeploymentPlan, DeploymentSettings, Server
from trainwright.serve.placement.allocate import allocate_or_pack
from trainwright.settings import Settings
from trainwright.validators import integer, optional, text

__all__ = ["AllocationStage", "DeploymentStage", "show_address", "show_plan"]

_WHERE = "[deployment]"
_ROWS = 32
_NEAR = 1e-6  # of the greatest answer, or of 1


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationStage(Settings, label=""):
    """Place the exported ensemble on devices; unchanged while the settings and the ensemble are."""

    name: ClassVar[str] = "allocation"
    devices: Annotated[str, text("a text such as 'cuda:0,cpu:0-7'"), "such as cuda:0,cpu:0-7"] = "cpu"

    def inputs(self, job: StudyJob) -> Mapping[str, Any]:
        """Return the settings and the ensemble's manifest."""
        return {"settings": asdict(self), "ensemble": job.read(self.name, f"{EXPORT}/manifest.json", "ensemble")}

    def run(self, job: StudyJob) -> StageOutcome:
        """Place the members and write the plan."""
        # What this very workflow exported, whose training function is the user's own program.
        ensemble = Ensemble.load(job.folder / EXPORT)
        plan = allocate_or_pack(ensemble, self.devices)
        plan.save(job.folder / PLACEMENT)
        content = plan.to_json()
        summary = {name: content[name] for name in ("matrix", "expected", "measured")}
        summary["devices"] = [device["name"] for device in content["devices"]]
        return StageOutcome(
            content={"plan": content, "file": str(job.folder / PLACEMENT), "summary": {"allocation": summary}},
            outputs=(PLACEMENT,),
        )

    def show(self, content: Mapping[str, Any]) -> None:
        """Print who runs where."""
        plan = DeploymentPlan.from_json(content["plan"])
        show_plan(plan)
        if not plan.source:
            print("placed by size alone: trials left no sample batch (tw.ensemble.leave, sample=) to time members with")
        print(f"plan:       {content['file']}")


def show_plan(plan: DeploymentPlan) -> None:
    """Print who runs where, units by devices that have an instance, and what it is worth if that is known."""
    # Devices without an instance are counted below the table.
    used = [place for place, row in enumerate(plan.matrix) if any(row)]
    simulated = " (simulated devices)" if plan.simulated else ""
    print(f"rows of a batch, by unit and device{simulated}; - is no instance\n")
    print_table(
        ("unit", *(plan.devices[place].name for place in used)),
        [(unit.name, *(plan.matrix[place][column] or "-" for place in used)) for column, unit in enumerate(plan.units)],
    )
    if idle := len(plan.devices) - len(used):
        print(f"{idle} of {len(plan.devices)} devices have nothing to do")
    if plan.in_process:
        print("computed by the serving process: its batches take less time than handing them to workers")
    if plan.expected or plan.measured:
        _show_worth(plan)


def _show_worth(plan: DeploymentPlan) -> None:
    print("\nthroughput, in rows a second:\n")
    lines = (("without worker processes", "in_process"), ("this plan", "value"), ("bound", "bound"))
    rows = [
        (label, _show_figure(plan.expected.get(key)), _show_figure(plan.measured.get(key)))
        for label, key in lines
        if key in plan.expected or key in plan.measured
    ]
    times = f" ({plan.source})" if plan.source else ""
    print_table(("", f"expected{times}", "measured"), rows)
    if "spread" in plan.expected:
        value, spread = plan.expected["value"], plan.expected["spread"]
        print(
            f"times of equal batches varied by {spread:.0%}: between {_show_figure(value / (1 + spread / 2))} and "
            f"{_show_figure(value * (1 + spread / 2))} rows a second are to be expected"
        )


def _show_figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentStage(DeploymentSettings, label=""):
    """Start the deployment and ask it once; unchanged while settings, ensemble and allocation are.

    Without a function `rows` that returns a batch of inputs to ask, they are drawn.
    """

    name: ClassVar[str] = "deployment"
    rows: Annotated[str | None, optional(text("a text")), "module:function that returns inputs"] = None
    host: Annotated[str, text("a text"), "beyond loopback a token is needed"] = "127.0.0.1"
    port: Annotated[int, integer(minimum=0, maximum=65535), "0 takes any that is free"] = 8000
    token_file: Annotated[str | None, optional(text("a text")), "holds the token; chmod 600"] = None

    def inputs(self, job: StudyJob) -> Mapping[str, Any]:
        """Return the settings, the ensemble's manifest and its plan."""
        return {
            # Where it listens matters to --serve alone.
            "settings": {**asdict(self), "host": None, "port": None, "token_file": None},
            "ensemble": job.read(self.name, f"{EXPORT}/manifest.json", "ensemble"),
            "allocation": job.read(self.name, PLACEMENT, "allocation"),
            "code": None if self.rows is None else read_source(self.rows, f"{_WHERE} rows"),
        }

    def run(self, job: StudyJob) -> StageOutcome:
        """Start the workers, ask for one answer, and compare it with that of the ensemble in this process."""
        deployment, ensemble, x = self._make_deployment(job)
        expected = ensemble.predict(x)
        begun = time.perf_counter()
        with deployment as service:
            started = time.perf_counter()
            answer = service.predict(x)
            ended = time.perf_counter()
        # Rounding may differ between batch sizes; a different network or order of members would differ by far
        # more.
        difference = float(np.abs(answer - expected).max()) if answer.shape == expected.shape else float("inf")
        if not difference <= _NEAR * max(1.0, float(np.abs(expected).max())):
            raise ServeError(
                f"deployment: the served ensemble answered {len(x)} rows otherwise than the ensemble, by "
                f"{difference:g}; allowed: rounding; its export or its code differ from what was trained"
            )
        content = {
            "rows": len(x),
            "difference": difference,
            "start_seconds": started - begun,
            "answer_ms": 1e3 * (ended - started),
            "processes": 0 if service.plan.in_process else len(service.plan.instances),
        }
        return StageOutcome(content={**content, "summary": {"deployment": content}})

    def serve(self, job: StudyJob) -> Mapping[str, Any]:
        """Answer requests over HTTP until told to end; return what was answered."""
        token = token_for(self.host, None if self.token_file is None else Path(self.token_file))
        deployment, _, _ = self._make_deployment(job)
        server = Server(deployment.start(), host=self.host, port=self.port, token=token)
        answered: Mapping[str, Any] = server.run(on_ready=show_address)
        return answered

    def show(self, content: Mapping[str, Any]) -> None:
        """Print that it answers as it should."""
        count = content["processes"]
        print(
            f"served:     {content['rows']} rows by {count} process{'es' * (count > 1)}, as the ensemble itself "
            f"answers (difference {content['difference']:.1g})"
        )

    def _make_deployment(self, job: StudyJob) -> tuple[Deployment, Ensemble, Array]:
        """Return the deployment, not yet started, with the ensemble and the rows that it is asked."""
        # What this very workflow exported, whose training function is the user's own program.
        ensemble = Ensemble.load(job.folder / EXPORT)
        x = self._make_rows(ensemble)
        plan = DeploymentPlan.load(job.folder / PLACEMENT)
        return Deployment(ensemble, plan, sample=x, settings=take_base(self, DeploymentSettings)), ensemble, x

    def _make_rows(self, ensemble: Ensemble) -> Array:
        # Inputs of the user's own are the better question.
        if self.rows is not None:
            return np.asarray(load_function(self.rows, f"{_WHERE} rows")())
        member = ensemble.members[0]
        if member.input_shape is None or member.input_dtype is None:
            raise InputError(
                f"{_WHERE}: the members do not remember the shape of their input; give rows = 'module:function', which "
                "returns a batch, or sample= to tw.ensemble.leave"
            )
        # Whole numbers may be indices: 0 and 1 are in every vocabulary.
        draws = rng(0, "deployment", 0).standard_normal((_ROWS, *member.input_shape))
        kind = np.dtype(member.input_dtype)
        return draws.astype(kind) if kind.kind == "f" else (draws > 0).astype(kind)


def show_address(server: Server) -> None:
    """Print where a server listens, with the token if it asks for one."""
    if server.grpc_port is not None:
        print(f"gRPC: port {server.grpc_port}")
    print(f"ready: {server.url}/?token={server.token}" if server.token else f"ready: {server.url}", flush=True)
