"""`trainwright plan MODEL`: parallel strategies with speed, memory and limits; `plan calibrate` measures a machine."""

import sys
from dataclasses import MISSING, asdict, replace
from pathlib import Path
from typing import Annotated, Any

from trainwright.cli.command import Argument, Option, OrderedGroup, Result, make_group, options_of, shorten
from trainwright.cli.inputs import (
    OracleSettings,
    find_cluster,
    read_costs,
    read_degrees,
    read_devices,
    read_loss,
    read_module,
    read_profile,
)
from trainwright.cli.plan_fit import calibrate, fit, import_network
from trainwright.cli.plan_table import SpeedOf, show_ranking
from trainwright.cli.workflow.plan import PlanStage
from trainwright.cli.workflow.study_file import read_job
from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.model.profile import Profile
from trainwright.plan import Forecast, Oracle, Saving
from trainwright.settings import settings_of

__all__ = ["app", "model"]

_SCHEMA = 1


class _Group(OrderedGroup):
    """Takes `plan MODEL` for `plan model MODEL`, and `plan --search FILE` for `plan search FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] == "--search":
            args = ["search", *args[1:]]
        if args and args[0] not in {*self.commands, "--help", "-h"}:
            # A model's name is no command, and needs none.
            args = ["model", *args]
        return super().parse_args(ctx, args)


@options_of(OracleSettings)
def model(
    model: Annotated[
        str, Argument(help="MODULE:FUNCTION that returns a nn.Module, a profile's .json, or a config.json.")
    ],
    *,
    sample: Annotated[str | None, Option(help="MODULE:FUNCTION that returns the model's arguments.")] = None,
    loss: Annotated[str | None, Option(help="MODULE:FUNCTION of model and batch that returns a scalar.")] = None,
    fuse: Annotated[bool, Option("--fuse", help="As torch.compile fuses the model's operations.")] = False,
    trace: Annotated[
        Path | None, Option(help="A trace of torch.profiler (.json, .gz) of the model's steps, for its seconds.")
    ] = None,
    sequence: Annotated[int | None, Option(minimum=1, help="Positions of a sample, for a config.json.")] = None,
    changes: dict[str, Any],
    devices: Annotated[str, Option(help="A number, several with commas, or max.")] = "max",
    batch: Annotated[int, Option(help="Samples of an iteration over all devices.")],
    micro: Annotated[int | None, Option(help="Samples that a device works on at a time.")] = None,
    costs: Annotated[
        str | None, Option("--input", help="Costs of a sample: bytes=110e3,decode=8e-3,workers=8.")
    ] = None,
    checkpoint: Annotated[float | None, Option(help="Bytes of one checkpoint.")] = None,
    strategies: Annotated[str | None, Option(help="Only these and their combinations: data,tensor.")] = None,
    degrees: Annotated[str | None, Option(help="Degrees that are fixed: tensor=8,pipeline=4.")] = None,
    recompute: Annotated[str | None, Option(help="Only none, selective or full recomputation.")] = None,
    also: Annotated[str, Option(help="What others run, too: ring,ulysses,sequence,zero-bubble,offload.")] = "",
    formulas: Annotated[str, Option(help="paradl: as that paper prices plans, without overlap.")] = "",
    goal: Annotated[str, Option(help="time, device-hours, time-to-solution or memory.")] = "time",
    samples: Annotated[
        int | None, Option(minimum=1, help="Samples of a training, for its hours and device-hours.")
    ] = None,
    tokens: Annotated[float | None, Option(minimum=1, help="Tokens of a training, as 300e9, for its hours.")] = None,
    top: Annotated[int, Option(minimum=1, help="Rows of the table.")] = 10,
    out: Annotated[Path | None, Option(help="Write the best plan to this file.")] = None,
) -> Result:
    """Rank the strategies for a model: seconds with an interval, memory, what limits each, and why others are out."""
    settings = OracleSettings(**changes)
    machine = find_cluster(settings.cluster, settings.nodes)
    # A table for each number of devices: the best strategy changes with it.
    numbers = read_devices(devices, machine)
    profile = read_profile(
        model,
        sample,
        precision=settings.precision,
        optimizer=settings.optimizer,
        loss=loss,
        fuse=fuse,
        sequence=sequence,
        trace=trace,
    )
    speeds = SpeedOf(profile, machine)
    if tokens is not None:
        samples = speeds.samples_of(tokens)
    oracle = Oracle(machine, formulas=formulas)
    dry_run = None
    if sample is not None:
        # What training sets up of a module shows in a dry run, which needs torch.
        from trainwright.train.parallel.dry_run import DryRun

        dry_run = DryRun(*read_module(model, sample), loss=read_loss(loss), enough=top)
    found = {
        number: oracle.rank(
            profile,
            devices=number,
            batch=batch,
            micro=micro,
            precision=settings.precision,
            optimizer=settings.optimizer,
            strategies=strategies.split(",") if strategies is not None else None,
            max_memory_bytes=settings.max_memory_bytes(),
            goal=goal,
            degrees=read_degrees(degrees) if degrees is not None else None,
            recompute=recompute,
            also=also.split(",") if also else (),
            input=read_costs(costs) if costs is not None else None,
            saving=Saving(bytes=checkpoint) if checkpoint is not None else None,
            dry_run=dry_run,
        )
        for number in numbers
    }
    _show_heading(profile, machine, trace, f"batch {batch}, {settings.precision}, {settings.optimizer}")
    if caveat := next(iter(found.values()))[0].caveat:
        print(f"caveat: {caveat}")
    for number, ranking in found.items():
        show_ranking(number, ranking, top=top, samples=samples, speeds=speeds)
    if out is not None:
        # A file is for training: the best plan that it sets up.
        ranked = found[numbers[-1]]
        best = next((plan for plan in ranked if not plan.refusal), ranked[0])
        best.save(out)
        print(f"\n{best.strategy} on {best.devices} devices: {out}")
    return Result(
        {
            "cluster": {name: getattr(machine, name) for name in ("name", "devices", "verified", "source")},
            "profile": {name: getattr(profile, name) for name in ("name", "parameters", "origin", "step_seconds")},
            "plans": [_collect_content(plan, samples, speeds) for ranking in found.values() for plan in ranking],
            "rejected": [
                {"devices": number, **asdict(each)} for number, ranking in found.items() for each in ranking.rejected
            ],
            "schema": _SCHEMA,
        }
    )


def _show_heading(profile: Profile, machine: Cluster, trace: Path | None, trained: str) -> None:
    """Print what is planned, on what, and what a trace measured."""
    state = "calibrated" if machine.verified else "uncalibrated: what was not measured is wide in the intervals"
    print(f"{profile.name}: {profile.parameters / 1e6:.1f} M parameters, {trained}")
    print(f"cluster {machine.name} ({state})")
    if trace is not None:
        took = {name: f"{shorten(seconds)} s" for name, seconds in profile.step_seconds.items()}
        print(
            f"measured: {trace}: {took['step']} a step, of it {took['update']} the update and {took['exposed']} wait"
            f"ing for exchanges (of {took['communication']})"
        )


def _collect_content(plan: Forecast, samples: int | None, speeds: SpeedOf) -> dict[str, Any]:
    hours = None if samples is None else plan.device_hours(samples)
    return {
        **asdict(plan),
        "devices": plan.devices,
        "seconds_per_iteration": plan.seconds_per_iteration,
        "refusal": plan.refusal,
        **speeds.describe(plan),
        "hours": None if hours is None else hours / plan.devices,
        "device_hours": hours,
        "device_hours_per_epoch": hours,
        "seconds_to_solution_per_epoch": None if samples is None else plan.seconds_to_solution(samples),
    }


@options_of(PlanStage, *(setting.name for setting in settings_of(PlanStage) if setting.default is not MISSING))
def search(
    file: Annotated[
        Path, Argument(help="A study file with [plan], or one in Python with profile_of(params) and samples.")
    ],
    *,
    changes: dict[str, Any],
    trials: Annotated[int, Option(minimum=1, help="Trials of the study.")] = 64,
) -> Result:
    """Predict what a study costs, as the stage [plan] of its file does; nothing is trained."""
    job = read_job(file)
    job.budget["trials"] = trials
    stage = next((stage for stage in job.stages if isinstance(stage, PlanStage)), None)
    if stage is None:
        module = sys.modules.get(file.stem)
        samples = getattr(module, "samples", None)
        if samples is None or not hasattr(module, "profile_of"):
            raise InputError(
                f"plan search: {file} says not what a trial is; allowed: a study file (.toml) with [plan], or a Python "
                "file with profile_of(params), which returns a profile and a batch, and samples, those of an epoch"
            )
        stage = PlanStage(profile=f"{file.stem}:profile_of", samples=samples)
    stage = replace(stage, **changes)
    content = stage.run(job).content
    stage.show(content)
    return Result({**content, "seeds": stage.seeds})


app = make_group(
    "plan",
    "Predict every parallel strategy for a model on a cluster; measure a machine.",
    {
        fit: "Fit a cluster's constants to measured training steps.",
        calibrate: "Measure computation, memory, storage and the network.",
        import_network: "Take the network from nccl-tests, nvidia-smi or Slurm.",
        search: "Predict what a study costs on a cluster.",
        model: "Rank the parallel strategies for a model.",
    },
    _Group,
)
