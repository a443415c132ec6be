"""`trainwright memory ...`: plan a step within a memory budget, its curve, and what a plan does."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from trainwright.cli.command import Argument, Option, PlanFile, Result, make_group, print_table
from trainwright.cli.inputs import call_function
from trainwright.errors import InputError
from trainwright.memory import Chain, Plan, load_chain
from trainwright.memory import curve as trade_offs
from trainwright.memory import plan as plan_step
from trainwright.plan.byte_sizes import format_bytes, read_size
from trainwright.plan.memory.known_plans import lowest_with_copies
from trainwright.plan.memory.plan_record import explain_plan
from trainwright.plan.memory.planning import full_bytes, minimal_bytes

__all__ = ["app"]

_SPEC = Annotated[str, Argument(help="A chain file (.json), or MODULE:FUNCTION for (model, sample[, loss]).")]
_PLAN = Annotated[Path, Argument(help="A plan file.")]


def plan(
    spec: _SPEC,
    *,
    budget: Annotated[str, Option(help="8GiB, a number of bytes, or a fraction such as 0.5.")],
    offload: Annotated[bool, Option("--offload", help="Copy values to the host and back.")] = False,
    bandwidth: Annotated[str | None, Option(help="Of the link to the host, such as 16GB (a second).")] = None,
    solver: Annotated[str, Option(help="auto, dp or exact.")] = "auto",
    optimizer: Annotated[str | None, Option(help="Of a model: sgd, momentum, adam or adamw; its state counts.")] = None,
    out: PlanFile = None,
) -> Result:
    """Find the fastest plan within a budget."""
    chain = _chain(spec, optimizer)
    speed = float(read_size(bandwidth, "bandwidth")) if bandwidth is not None else None
    planned = plan_step(chain, budget=budget, offload=offload, bandwidth=speed, solver=solver)
    # What a smaller or larger budget could come to, without planning again.
    least, full = minimal_bytes(chain), full_bytes(chain)
    _, with_copies = lowest_with_copies(chain)
    print_table(
        ("", "plan", "without"),
        [
            ("step", f"{planned.seconds:.6g} s", f"{chain.plain_seconds:.6g} s"),
            ("peak", format_bytes(planned.peak_bytes), format_bytes(full)),
            ("overhead", f"{100 * planned.overhead:.2f} %", ""),
            ("gap to the bound", f"{100 * planned.gap:.2f} %", ""),
            ("budget", format_bytes(planned.budget_bytes), ""),
            ("least without copies", format_bytes(least), ""),
            ("least with copies", format_bytes(with_copies), ""),
            ("solver", planned.solver, ""),
        ],
    )
    if out is not None:
        planned.save(out)
        print(f"plan: {out}")
    limits = {"minimal_bytes": least, "minimal_bytes_with_copies": with_copies, "full_bytes": full}
    return Result({**planned.to_json(), "chain": None, **limits})


def curve(spec: _SPEC, *, points: Annotated[int, Option(minimum=3, help="At most so many plans.")] = 16) -> Result:
    """Show memory against time, from the least feasible budget up, with baselines."""
    # One chain for all budgets: a model is profiled once.
    chain = _chain(spec)
    found = trade_offs(chain, points=points)
    print_table(
        ("", "peak", "step", "overhead"),
        [
            (
                point.name,
                format_bytes(point.peak_bytes),
                f"{point.seconds:.6g} s",
                f"{100 * (point.seconds / chain.plain_seconds - 1):.2f} %",
            )
            for point in (*found.points, *sorted(found.baselines, key=lambda point: point.peak_bytes))
        ],
    )
    return Result(asdict(found))


def explain(file: _PLAN) -> Result:
    """Explain what a plan does with each stage, and which tensors make up its peak."""
    planned = Plan.load(file)
    reports = explain_plan(planned)
    print_table(
        ("stage", "name", "", "forwards", "option", "bytes saved", "seconds paid"),
        [
            (each.stage, each.name, each.fate, each.forwards, each.option, format_bytes(each.saved_bytes),
             f"{each.paid_seconds:.4g}")
            for each in reports
        ],
        left=3,
    )  # fmt: skip
    simulation = planned.simulation
    print(f"\npeak {format_bytes(planned.peak_bytes)} of {format_bytes(planned.budget_bytes)}, at "
          f"{planned.operations[simulation.peak_operation]}:")  # fmt: skip
    for owner, size in sorted(simulation.peak_owners, key=lambda pair: -pair[1]):
        print(f"  {owner}: {format_bytes(size)}")
    if not planned.chain.loss.saved_bytes:
        print("this chain has no bytes of the loss: its peak is not planned")
    return Result(
        {
            "stages": [asdict(each) for each in reports],
            "peak_bytes": planned.peak_bytes,
            "peak_operation": str(planned.operations[simulation.peak_operation]),
            "peak_owners": dict(simulation.peak_owners),
        }
    )


def _chain(spec: str, optimizer: str | None = None) -> Chain:
    """Return the chain that SPEC names: that of a file, or of the model that a function returns."""
    if Path(spec).suffix == ".json" or ":" not in spec:
        return load_chain(spec)
    parts = call_function("SPEC", spec)
    if not isinstance(parts, tuple) or len(parts) not in {2, 3} or not hasattr(parts[0], "named_parameters"):
        raise InputError(
            f"SPEC: {spec} returned {type(parts).__name__}; allowed: a function that returns (model, sample) or "
            "(model, sample, loss), the loss a function of the model's result"
        )
    model, sample, loss = (*parts, None)[:3]
    return load_chain(model, sample, loss=loss, optimizer=optimizer)


app = make_group(
    "memory",
    "Train within a memory budget: recompute or offload what does not fit.",
    {
        plan: "Find the fastest plan within a budget.",
        curve: "Show memory against time, budget by budget.",
        explain: "Say what a plan does with each stage, and why.",
    },
)
