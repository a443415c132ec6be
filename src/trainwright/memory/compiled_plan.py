"""CompiledPlan: what a compiled step saves for its backward, by the names of its graph, and the file that holds it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from trainwright.errors import PlanMismatch
from trainwright.files import read_json, write_text
from trainwright.memory.plan_record import Plan

__all__ = ["CompiledPlan", "Compiler", "RunAgain", "SavedValue", "read_plan"]

SCHEMA = 1
_KIND = "compiled memory plan"
Compiler = Literal["inductor", "aot_eager"]


@dataclass(frozen=True, slots=True)
class SavedValue:
    """A value that forward keeps for backward."""

    name: str
    """In the joint graph."""
    module: str
    """Whose forward makes it; "" where torch does not say."""
    nbytes: int
    """Of its storage; what shares that with one before it has 0."""


@dataclass(frozen=True, slots=True)
class RunAgain:
    """An operation of forward that backward runs again."""

    name: str
    module: str
    seconds: float
    """Measured alone."""


@dataclass(frozen=True, kw_only=True)
class CompiledPlan:
    """What a compiled step saves for its backward, and what it was measured to take."""

    budget_bytes: int
    peak_bytes: int
    """Measured: live allocations of a step at their most, with parameters, buffers and batch."""
    simulated_bytes: int
    """As the sweep foresaw it, without what a loss takes for itself."""
    fixed_bytes: int
    """Of these: parameters, buffers, batch, and what lies beside the step."""
    input_bytes: int
    """Of the batch; larger ones are refused."""
    forward_seconds: float
    """All of forward, each operation measured alone."""
    saved: tuple[SavedValue, ...] = field(repr=False)
    again: tuple[RunAgain, ...] = field(repr=False)
    compiler: Compiler
    graph: str
    """Hash of the joint graph: its operations, names, shapes."""
    torch_version: str | None = None

    @property
    def seconds_again(self) -> float:
        """What is run again, each operation measured alone."""
        return sum(each.seconds for each in self.again)

    @property
    def summary(self) -> dict[str, Any]:
        """The plan's numbers by name."""
        numbers = {name: value for name, value in self.to_json().items() if name not in {"schema", "kind"}}
        return {**numbers, "saved": len(self.saved), "again": len(self.again), "seconds_again": self.seconds_again}

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        return {"schema": SCHEMA, "kind": _KIND, **asdict(self)}

    @classmethod
    def from_json(cls, content: Any) -> "CompiledPlan":
        """Return the plan that `to_json` has written; raise PlanMismatch if it is none."""
        if not isinstance(content, Mapping) or content.get("kind") != _KIND:
            raise PlanMismatch(f"plan file: got no {_KIND}; allowed: what CompiledPlan.save writes")
        if content.get("schema") != SCHEMA:
            raise PlanMismatch(f"plan file, schema: got {content.get('schema')!r}; allowed: {SCHEMA}; plan again")
        try:
            values = {each.name: content[each.name] for each in fields(cls)}
            values["saved"] = tuple(SavedValue(**each) for each in values["saved"])
            values["again"] = tuple(RunAgain(**each) for each in values["again"])
        except (KeyError, TypeError) as failure:
            raise PlanMismatch(
                f"plan file: got a plan that is not whole ({failure}); allowed: what CompiledPlan.save writes"
            ) from None
        return cls(**values)

    def save(self, path: str | Path) -> None:
        """Write the plan as a JSON file."""
        write_text(path, "plan file", json.dumps(self.to_json(), indent=1) + "\n", error=PlanMismatch)

    @classmethod
    def load(cls, path: str | Path) -> "CompiledPlan":
        """Read a plan from a JSON file."""
        return cls.from_json(
            read_json(path, "plan file", allowed="a file that CompiledPlan.save wrote", error=PlanMismatch)
        )


def read_plan(path: str | Path) -> Plan | CompiledPlan:
    """Return the plan that a file holds, of either back-end."""
    allowed = "a file that a plan's save or `trainwright memory plan --out` wrote"
    content = read_json(path, "plan file", allowed=allowed, error=PlanMismatch)
    compiled = isinstance(content, Mapping) and content.get("kind") == _KIND
    return CompiledPlan.from_json(content) if compiled else Plan.from_json(content)
