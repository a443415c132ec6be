"""Plans: operations for one chain and what they should take, their files, and what they do with each stage."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trainwright.errors import PlanMismatch
from trainwright.files import read_json, write_text
from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import Link, Operation, OperationKind, parse_operation
from trainwright.plan.memory.simulate import Simulation, simulate

__all__ = ["SCHEMA", "Plan", "StageReport", "explain_plan"]

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A valid list of operations for a chain within a budget, with the simulator's time and peak.

    `Plan.of` simulates; whoever makes one otherwise has to.
    """

    chain: Chain = field(repr=False)
    operations: tuple[Operation, ...] = field(repr=False)
    budget_bytes: int
    seconds: float
    """Of one step: the chain's forwards and backwards with what is run again, and waits for copies."""
    peak_bytes: int
    lower_seconds: float
    """No plan within the budget is faster (without copies, or with ideal ones)."""
    solver: str
    link: Link | None = None

    @classmethod
    def of(
        cls, chain: Chain, operations: tuple[Operation, ...], *, budget_bytes: int, solver: str,
        lower_seconds: float = 0.0, link: Link | None = None,
    ) -> "Plan":  # fmt: skip
        """Return the plan of operations; raise PlanMismatch if the simulator finds them invalid or over the budget."""
        plain = chain.plain_peak_bytes if solver == "none" else None  # the model runs as it is
        simulation = simulate(chain, operations, budget_bytes=budget_bytes if plain is None else None, link=link)
        if simulation.violation is not None:
            raise PlanMismatch(
                f"plan, operation {simulation.violation.operation}: got {simulation.violation.reason}; allowed: "
                f"operations that run within {budget_bytes} bytes"
            )
        return cls(
            chain=chain, operations=operations, budget_bytes=budget_bytes, seconds=simulation.seconds,
            peak_bytes=simulation.peak_bytes if plain is None else plain,
            lower_seconds=min(lower_seconds, simulation.seconds), solver=solver, link=link,
        )  # fmt: skip

    @property
    def overhead(self) -> float:
        """Seconds over those of a step without a plan, as a share of them."""
        return self.seconds / self.chain.plain_seconds - 1 if self.chain.plain_seconds else 0.0

    @property
    def gap(self) -> float:
        """How far from the best the plan may be: seconds over the lower bound, as a share of it."""
        return self.seconds / self.lower_seconds - 1 if self.lower_seconds else 0.0

    @cached_property
    def simulation(self) -> Simulation:
        """The simulator's record: memory over time, lanes, the peak and its owners."""
        plain = self.solver == "none" and self.chain.plain_peak_bytes is not None
        return simulate(self.chain, self.operations, budget_bytes=None if plain else self.budget_bytes, link=self.link)

    @property
    def summary(self) -> dict[str, Any]:
        """The plan's numbers by name, without its operations."""
        return {
            "solver": self.solver,
            "budget_bytes": self.budget_bytes,
            "seconds": self.seconds,
            "peak_bytes": self.peak_bytes,
            "overhead": self.overhead,
            "lower_seconds": self.lower_seconds,
            "gap": self.gap,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the plan with its chain as a JSON object."""
        return {
            "schema": SCHEMA,
            "kind": "memory plan",
            "digest": self.chain.digest,
            **self.summary,
            "link": None if self.link is None else asdict(self.link),
            "operations": [str(operation) for operation in self.operations],
            "chain": self.chain.to_json(),
        }

    @classmethod
    def from_json(cls, content: Any) -> "Plan":
        """Return the plan that `to_json` has written, simulated again; raise PlanMismatch if it is none."""
        if not isinstance(content, dict) or content.get("kind") != "memory plan":
            raise PlanMismatch("plan file: got no memory plan; allowed: what Plan.save writes")
        if content.get("schema") != SCHEMA:
            raise PlanMismatch(f"plan file, schema: got {content.get('schema')!r}; allowed: {SCHEMA}; plan again")
        try:
            chain = Chain.from_json(content["chain"])
            if chain.digest != content["digest"]:
                raise PlanMismatch(
                    f"plan file, digest: got {content['digest']}, its chain has {chain.digest}; allowed: a file as it "
                    "was saved; plan again"
                )
            return cls.of(
                chain, tuple(map(parse_operation, content["operations"])), budget_bytes=content["budget_bytes"],
                solver=content["solver"], lower_seconds=content["lower_seconds"],
                link=None if content["link"] is None else Link(**content["link"]),
            )  # fmt: skip
        except KeyError as missing:
            raise PlanMismatch(f"plan file: got none of {missing}; allowed: what Plan.save writes") from None

    def save(self, path: str | Path) -> None:
        """Write the plan as a JSON file."""
        write_text(path, "plan file", json.dumps(self.to_json(), indent=1) + "\n", error=PlanMismatch)

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Read a plan from a JSON file."""
        allowed = "a file that Plan.save or `trainwright memory plan --out` wrote"
        return cls.from_json(read_json(path, "plan file", allowed=allowed, error=PlanMismatch))


_FORWARDS = {OperationKind.FORWARD_ALL, OperationKind.FORWARD_KEEP, OperationKind.FORWARD_DROP}


@dataclass(frozen=True, kw_only=True, slots=True)
class StageReport:
    """One stage of a plan."""

    stage: int
    name: str
    fate: str
    """"kept" (saved at its first forward), "recomputed", and "offloaded" where a value of it waits on the host."""
    forwards: int
    option: str
    """How it is saved in the end."""
    saved_bytes: int
    """Bytes that are not held between its first forward and its backward."""
    paid_seconds: float
    """Seconds of its forwards but one, and what its option takes more than the stage's own."""


def explain_plan(plan: Plan) -> tuple[StageReport, ...]:
    """Return what a plan does with each stage, the loss stage last."""
    first: dict[int, OperationKind] = {}
    runs: Counter[int] = Counter()
    options: dict[int, int] = {}
    away = {operation.stage for operation in plan.operations if operation.kind is OperationKind.OFFLOAD}
    times: dict[int, float] = {}
    for operation in plan.operations:
        stage = operation.stage
        step = plan.chain.steps[stage - 1]
        if operation.kind in _FORWARDS:
            first.setdefault(stage, operation.kind)
            runs[stage] += 1
            saves = operation.kind is OperationKind.FORWARD_ALL
            times[stage] = times.get(stage, 0.0) + (
                step.choices[operation.option].forward_seconds if saves else step.no_grad_seconds
            )
            if saves:
                options[stage] = operation.option
        elif operation.kind is OperationKind.BACKWARD:
            times[stage] = times.get(stage, 0.0) + step.choices[options[stage]].backward_seconds
    reports = []
    for stage, step in enumerate(plan.chain.steps, start=1):
        option = step.choices[options[stage]]
        kept = first[stage] is OperationKind.FORWARD_ALL and runs[stage] == 1
        fate = "kept" if kept else "recomputed"
        held = option.saved_bytes if kept and stage not in away else 0
        reports.append(
            StageReport(
                stage=stage,
                name=step.name,
                fate=f"{fate}, offloaded" if stage in away else fate,
                forwards=runs[stage],
                option=option.name,
                saved_bytes=step.saved_bytes - held,
                paid_seconds=times[stage] - step.forward_seconds - step.backward_seconds,
            )
        )
    return tuple(reports)
