"""`trainwright memory ...`: plan a step within a memory budget, its curve, what a plan does, its picture."""

from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli._functions import function_of, made_by
from trainwright.cli._json import print_json
from trainwright.cli.formatting import print_table
from trainwright.errors import BudgetError, InputError, PlanMismatch
from trainwright.files import write_text
from trainwright.memory import Chain, CompiledPlan, fit, read_chain
from trainwright.memory import curve as trade_offs
from trainwright.memory import pipeline as plan_stages
from trainwright.memory import plan as plan_step
from trainwright.memory.budget import read_size, readable
from trainwright.memory.compiled_plan import read_plan
from trainwright.memory.explain import explain as explained
from trainwright.memory.explain import explain_compiled
from trainwright.memory.lowest import lowest_with_copies
from trainwright.memory.picture import draw
from trainwright.memory.planning import full_bytes, minimal_bytes
from trainwright.memory.subject import as_chain

__all__ = ["app"]

app = typer.Typer(
    name="memory",
    help="Train within a memory budget: recompute or offload what does not fit.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_SPEC = Annotated[
    str,
    typer.Argument(
        help="A chain file (.json), a PipeDream graph (.txt), or MODULE:FUNCTION for (model, sample[, loss])."
    ),
]
_PLAN = Annotated[Path, typer.Argument(help="A plan file.")]
_JSON = Annotated[bool, typer.Option("--json", help="End with one line of JSON.")]
_MULTIPLE = Annotated[
    float, typer.Option("--saved-multiple", help="What a graph's stages save, as a multiple of their outputs.")
]


@app.command(short_help="Find the fastest plan within a budget.")
def plan(
    spec: _SPEC,
    *,
    budget: Annotated[str, typer.Option("--budget", help="8GiB, a number of bytes, or a fraction such as 0.5.")],
    offload: Annotated[bool, typer.Option("--offload", help="Let values wait on the host.")] = False,
    bandwidth: Annotated[
        str | None, typer.Option("--bandwidth", help="Of the link to the host, such as 16GB (a second).")
    ] = None,
    solver: Annotated[str, typer.Option("--solver", help="auto, dp, exact or milp.")] = "auto",
    limit: Annotated[
        float | None, typer.Option("--limit", min=0, help="Seconds for the integer programme of auto or milp.")
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", help="Of a model: sgd, momentum, adam or adamw; its state counts.")
    ] = None,
    saved_multiple: _MULTIPLE = 1.0,
    backend: Annotated[
        str, typer.Option("--backend", help="eager, or compile: what a model compiled by torch.compile saves.")
    ] = "eager",
    compiler: Annotated[str, typer.Option("--compiler", help="Of compile: inductor or aot_eager.")] = "inductor",
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan to this file.")] = None,
    json: _JSON = False,
) -> None:
    """Find the fastest plan within a budget."""
    if backend not in {"eager", "compile"}:
        raise BudgetError(f"--backend: got {backend!r}; allowed: eager, compile")
    if backend == "compile":
        theirs = {"--offload": offload, "--bandwidth": bandwidth, "--limit": limit, "--solver": solver != "auto"}
        strange = next((name for name, value in theirs.items() if value not in {None, False}), None)
        if strange is not None:
            raise BudgetError(f"{strange}: got it with --backend compile; allowed: with --backend eager")
        _plan_compiled(spec, {"budget": budget, "optimizer": optimizer, "compiler": compiler}, out, json=json)
        return
    chain = _chain(spec, saved_multiple, optimizer)
    speed = float(read_size(bandwidth, "bandwidth")) if bandwidth is not None else None
    result = plan_step(chain, budget=budget, offload=offload, bandwidth=speed, solver=solver, limit_seconds=limit)
    least, full = minimal_bytes(chain), full_bytes(chain)
    _, with_copies = lowest_with_copies(chain)
    print_table(
        ("", "plan", "without"),
        [
            ("step", f"{result.seconds:.6g} s", f"{chain.plain_seconds:.6g} s"),
            ("peak", readable(result.peak_bytes), readable(full)),
            ("overhead", f"{100 * result.overhead:.2f} %", ""),
            ("gap to the bound", f"{100 * result.gap:.2f} %", ""),
            ("budget", readable(result.budget_bytes), ""),
            ("least without copies", readable(least), ""),
            ("least with copies", readable(with_copies), ""),
            ("solver", result.solver, ""),
        ],
    )
    if out is not None:
        result.save(out)
        print(f"plan: {out}")
    if json:
        content = {name: value for name, value in result.to_json().items() if name != "chain"}
        print_json({**content, "minimal_bytes": least, "minimal_bytes_with_copies": with_copies,
                    "full_bytes": full})  # fmt: skip


@app.command(short_help="Show memory against time, budget by budget.")
def curve(
    spec: _SPEC,
    *,
    points: Annotated[int, typer.Option("--points", min=3, help="At most so many plans.")] = 16,
    saved_multiple: _MULTIPLE = 1.0,
    json: _JSON = False,
) -> None:
    """Show memory against time, from the least feasible budget up, with baselines."""
    chain = _chain(spec, saved_multiple)
    found = trade_offs(chain, points=points)
    rows = [
        (point.name, readable(point.peak_bytes), f"{point.seconds:.6g} s",
         f"{100 * (point.seconds / chain.plain_seconds - 1):.2f} %")
        for point in (*found.points, *sorted(found.baselines, key=lambda item: item.peak_bytes))
    ]  # fmt: skip
    print_table(("", "peak", "step", "overhead"), rows)
    if json:
        print_json(
            {
                "minimal_bytes": found.minimal_bytes,
                "full_bytes": found.full_bytes,
                "points": [{"peak_bytes": item.peak_bytes, "seconds": item.seconds} for item in found.points],
                "baselines": [
                    {"name": item.name, "peak_bytes": item.peak_bytes, "seconds": item.seconds}
                    for item in found.baselines
                ],
            }
        )


@app.command(short_help="Say what a plan does with each stage, and why.")
def explain(file: _PLAN, *, json: _JSON = False) -> None:
    """Say what a plan does with each stage, and who holds the bytes of its peak."""
    from dataclasses import asdict

    result = read_plan(file)
    if isinstance(result, CompiledPlan):
        _explain_compiled(result, json=json)
        return
    reports = explained(result)
    print_table(
        ("stage", "name", "", "forwards", "option", "bytes saved", "seconds paid"),
        [
            (item.stage, item.name, item.fate, item.forwards, item.option, readable(item.saved_bytes),
             f"{item.paid_seconds:.4g}")
            for item in reports
        ],
        left=3,
    )  # fmt: skip
    simulation = result.simulation
    print(f"\npeak {readable(result.peak_bytes)} of {readable(result.budget_bytes)}, at "
          f"{result.operations[simulation.peak_operation]}:")  # fmt: skip
    for owner, size in sorted(simulation.peak_owners, key=lambda item: -item[1]):
        print(f"  {owner}: {readable(size)}")
    if not result.chain.loss.saved_bytes:
        print("the loss has no bytes of its own in this chain: its peak is not planned")
    if json:
        print_json(
            {
                "stages": [asdict(item) for item in reports],
                "peak_bytes": result.peak_bytes,
                "peak_operation": str(result.operations[simulation.peak_operation]),
                "peak_owners": dict(simulation.peak_owners),
            }
        )


@app.command(short_help="Draw memory over time, with computation and copies.")
def plot(
    file: _PLAN,
    *,
    out: Annotated[Path, typer.Option("--out", help="The picture, an .svg file.")] = Path("memory.svg"),
    json: _JSON = False,
) -> None:
    """Draw memory over time, with the lanes of compute and copies."""
    result = read_plan(file)
    if isinstance(result, CompiledPlan):
        raise PlanMismatch(
            f"plan file {str(file)!r}: got a plan of --backend compile, whose memory over time only the compiled code "
            "knows; allowed: one of --backend eager; see `trainwright memory explain`"
        )
    draw(result, out)
    print(f"picture: {out}")
    if json:
        print_json({"picture": out})


@app.command(short_help="Cut a chain into pipeline stages that recompute.")
def pipeline(
    spec: _SPEC,
    *,
    stages: Annotated[int, typer.Option("--stages", help="Devices in a row.")],
    microbatches: Annotated[int, typer.Option("--microbatches", help="Of a step.")],
    memory: Annotated[str, typer.Option("--memory", help="Of a device, such as 16GiB.")],
    bandwidth: Annotated[
        str | None, typer.Option("--bandwidth", help="Between devices, such as 16GB (a second).")
    ] = None,
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule", help="auto (the least step), gpipe, 1f1b, interleaved, zero-bubble, 1f1b-star or madpipe."
        ),
    ] = "auto",
    saved_multiple: _MULTIPLE = 1.0,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the schedule, a row per device.")] = None,
    json: _JSON = False,
) -> None:
    """Cut a chain into pipeline stages that recompute what they cannot hold."""
    speed = float(read_size(bandwidth, "bandwidth")) if bandwidth is not None else float("inf")
    chain = _chain(spec, saved_multiple)
    result = plan_stages(
        chain, stages=stages, microbatches=microbatches, memory=memory, bandwidth=speed, schedule=schedule
    )
    parts = result.partition.parts
    print_table(
        ("stage", "device", "layers", "a micro-batch", "in flight", "without recomputing"),
        [
            (place, device, f"{part.first}-{part.last}", f"{part.seconds:.6g} s", part.flying, readable(size))
            for place, (part, device, size) in enumerate(zip(parts, result.devices, result.plain_bytes, strict=True))
        ],
    )
    print()
    loads = {way: None if found is None else found.load_seconds for way, found in result.alternatives.items()}
    for way, load in loads.items():
        print(f"busiest stage or link, {way}: {'does not fit' if load is None else f'{load:.6g} s'}")
    for name, placement in result.placements.items():
        bound = f"{placement.lower_seconds:.6g} s"
        print(f"period, {name}: {placement.pattern.period_seconds:.6g} s, none of its kind below {bound}")
    for name, timeline in result.timelines.items():
        chosen = " (the plan's)" if name == result.schedule else ""
        print(f"step, {name}: {timeline.seconds:.6g} s, {100 * timeline.busy_share:.1f} % busy{chosen}")
    if csv is not None:
        write_text(csv, "schedule", result.to_csv())
        print(f"schedule: {csv}")
    if json:
        print_json(
            {
                "stages": [{"first": part.first, "last": part.last, "device": device, "seconds": part.seconds,
                            "in_flight": part.flying} for part, device in zip(parts, result.devices, strict=True)],
                "load_seconds": loads,
                "period_seconds": {name: item.pattern.period_seconds for name, item in result.placements.items()},
                "period_lower_seconds": {name: item.lower_seconds for name, item in result.placements.items()},
                "step_seconds": {name: timeline.seconds for name, timeline in result.timelines.items()},
                "schedule": result.schedule,
            }
        )  # fmt: skip


def _plan_compiled(spec: str, settings: dict[str, Any], out: Path | None, *, json: bool) -> None:
    values = _model(spec)
    if values is None:
        raise BudgetError(
            f"--backend: got 'compile' for the file {spec!r}; allowed: MODULE:FUNCTION for (model, sample[, loss]), "
            "which is compiled and run"
        )
    model, sample, loss = values
    result: CompiledPlan = fit(model, sample, loss=loss, backend="compile", **settings).plan
    share = result.seconds_again / result.forward_seconds if result.forward_seconds else 0.0
    print_table(
        ("", "plan"),
        [
            ("peak, measured", readable(result.peak_bytes)),
            ("budget", readable(result.budget_bytes)),
            ("parameters, batch and what else is fixed", readable(result.fixed_bytes)),
            (
                "saved for backward",
                f"{len(result.saved)} values, {readable(sum(item.nbytes for item in result.saved))}",
            ),
            ("run again", f"{len(result.again)} operations, {100 * share:.2f} % of forward"),
            ("compiler", result.compiler),
        ],
    )
    if out is not None:
        result.save(out)
        print(f"plan: {out}")
    if json:
        print_json(result.summary)


def _explain_compiled(result: "CompiledPlan", *, json: bool) -> None:
    from dataclasses import asdict

    reports = explain_compiled(result)
    print_table(
        ("module", "saved values", "bytes", "run again", "seconds"),
        [
            (item.module or "the model's own", item.saved, readable(item.saved_bytes), item.again,
             f"{item.again_seconds:.4g}")
            for item in reports
        ],
    )  # fmt: skip
    print(f"\npeak {readable(result.peak_bytes)} of {readable(result.budget_bytes)}, measured, {result.compiler}:")
    print(f"  parameters, batch and what else is fixed: {readable(result.fixed_bytes)}")
    print(f"  values of the step: {readable(result.peak_bytes - result.fixed_bytes)}")
    if json:
        print_json({"modules": [asdict(item) for item in reports], "peak_bytes": result.peak_bytes,
                    "fixed_bytes": result.fixed_bytes})  # fmt: skip


def _chain(spec: str, saved_multiple: float, optimizer: str | None = None) -> "Chain":
    """Return the chain that SPEC names."""
    result = _model(spec)
    if result is None:
        return read_chain(spec, saved_multiple=saved_multiple)
    model, sample, loss = result
    return as_chain(model, sample, loss=loss, optimizer=optimizer)


def _model(spec: str) -> tuple[Any, Any, Any] | None:
    """Return model, sample and loss that SPEC names, None for a file: the one place that decides what a SPEC may be."""
    if Path(spec).suffix in {".json", ".txt"} or ":" not in spec:
        return None
    result = made_by("SPEC", spec, function_of("SPEC", spec))
    if not isinstance(result, tuple) or len(result) not in {2, 3} or not hasattr(result[0], "named_parameters"):
        raise InputError(
            f"SPEC: {spec} returned {type(result).__name__}; allowed: a function that returns (model, sample) or "
            "(model, sample, loss), the loss a function of the model's result"
        )
    return result[0], result[1], result[2] if len(result) == 3 else None
