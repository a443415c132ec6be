"""CompiledPlan: how much a compiled step saves for its backward, its measured peak, and the file of both."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from trainwright.errors import PlanMismatch
from trainwright.files import read_json, write_text
from trainwright.plan.memory.plan_record import Plan

__all__ = ["CompiledPlan", "Compiler", "read_plan"]

SCHEMA = 2
_KIND = "compiled memory plan"
Compiler = Literal["inductor", "aot_eager"]


@dataclass(frozen=True, kw_only=True)
class CompiledPlan:
    """A compiled step within a budget: the share of saved values that torch's partitioner is allowed, and its peak."""

    budget_bytes: int
    peak_bytes: int
    """Measured: live allocations of a step at their most, with parameters, buffers and batch."""
    fixed_bytes: int
    """Of these: parameters, buffers, batch, the optimizer's state and the reserve."""
    input_bytes: int
    """Of the batch; larger ones are refused."""
    saved_share: float
    """torch's `activation_memory_budget`: 1 saves what torch saves without a budget, 0 recomputes all that it can."""
    compiler: Compiler
    torch_version: str | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """The plan's numbers by name."""
        return asdict(self)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        return {"schema": SCHEMA, "kind": _KIND, **asdict(self)}

    @classmethod
    def from_json(cls, content: Any) -> "CompiledPlan":
        """Return the plan that `to_json` has written; raise PlanMismatch for anything else."""
        if not isinstance(content, Mapping) or content.get("kind") != _KIND or content.get("schema") != SCHEMA:
            raise PlanMismatch(f"plan file: got no {_KIND} of schema {SCHEMA}; allowed: what CompiledPlan.save writes")
        missing = [field.name for field in fields(cls) if field.name not in content]
        if missing:
            raise PlanMismatch(f"plan file: got no {missing[0]!r}; allowed: what CompiledPlan.save writes")
        return cls(**{field.name: content[field.name] for field in fields(cls)})

    def save(self, path: str | Path) -> None:
        """Write the plan as a JSON file."""
        write_text(path, "plan file", json.dumps(self.to_json(), indent=1) + "\n", error=PlanMismatch)

    @classmethod
    def load(cls, path: str | Path) -> "CompiledPlan":
        """Read a plan from a JSON file."""
        allowed = "a file that CompiledPlan.save wrote"
        return cls.from_json(read_json(path, "plan file", allowed=allowed, error=PlanMismatch))


def read_plan(path: str | Path) -> Plan | CompiledPlan:
    """Return the plan that a file holds, of either back-end."""
    allowed = "a file that a plan's save or `trainwright memory plan --out` wrote"
    content = read_json(path, "plan file", allowed=allowed, error=PlanMismatch)
    compiled = isinstance(content, Mapping) and content.get("kind") == _KIND
    return CompiledPlan.from_json(content) if compiled else Plan.from_json(content)
