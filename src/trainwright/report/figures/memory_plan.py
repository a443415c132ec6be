"""A memory plan over time: bytes alive in one training step, by who holds them, under the budget's line."""

import numpy as np

from trainwright.memory import Plan
from trainwright.plan.memory.budget import format_bytes
from trainwright.report.figures.figure import Figure, Json, axis, layout, rounded
from trainwright.report.formatting import duration, escape

__all__ = ["memory_plan_figure"]

_OWNERS = (
    ("fixed_bytes", "fixed", "--muted"),
    ("output_bytes", "outputs", "--blue"),
    ("saved_bytes", "saved values", "--sky"),
    ("skip_bytes", "what skips stages", "--ramp-2"),
    ("gradient_bytes", "gradients", "--orange"),
    ("parameter_gradient_bytes", "parameters' gradients", "--red"),
    ("temporary_bytes", "temporaries", "--green"),
)
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def memory_plan_figure(plan: Plan, name: str) -> Figure:
    """Return the figure of a plan that lies in the study's folder as NAME.json."""
    simulation = plan.simulation
    points = simulation.points
    most = max(plan.budget_bytes, simulation.peak_bytes)
    size, unit = next(item for item in _UNITS if most >= item[0] or item[0] == 1)
    per, clock = next(item for item in _TIMES if simulation.seconds >= 2 * item[0] or item[0] == 1e-6)
    x = rounded([*(point.seconds / per for point in points), simulation.seconds / per])
    below = np.zeros(len(points) + 1)
    traces: list[Json] = []
    for attribute, owner, colour in _OWNERS:
        holding = np.array([getattr(point, attribute) for point in points], dtype=np.float64) / size
        holding = np.append(holding, holding[-1:] if len(holding) else 0.0)
        if not holding.any():
            continue
        top = below + holding
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": owner,
                "x": x,
                "y": rounded(top),
                "under": rounded(below),
                "customdata": rounded(holding, 3),
                "fill": "tonexty",
                "fillcolor": colour,
                "line": {"color": colour, "width": 0.5, "shape": "hv"},
                "hovertemplate": f"%{{x:.3g}} {clock}: %{{customdata}} {unit}<extra></extra>",
            }
        )
        below = top
    budget = plan.budget_bytes / size
    line = {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": budget, "y1": budget}
    return Figure(
        name=f"memory-{escape(name, 40)}",
        title=f"Memory plan: {escape(plan.chain.name or name, 40)}",
        caption=f"Bytes alive in one step of {duration(simulation.seconds)}, {100 * plan.overhead:.1f} % longer than "
        f"without a plan; the peak is {format_bytes(simulation.peak_bytes)}, the dashed budget "
        f"{format_bytes(plan.budget_bytes)}. From {escape(name, 60)}.json, by the solver {escape(plan.solver, 30)}.",
        data=traces,
        layout=layout(
            xaxis=axis(f"time in the step ({clock})", range=[0, simulation.seconds / per]),
            yaxis=axis(unit, range=[0, 1.08 * most / size]),
            shapes=[{**line, "line": {"color": "--ink", "width": 1.2, "dash": "dash"}}],
        ),
        height=380,
    )
