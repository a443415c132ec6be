"""[allocation]: which member of the exported ensemble runs on which device, with which batch size."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from trainwright.cli.stages._stage import EXPORT, PLACEMENT, Outcome, Work
from trainwright.errors import InputError, closest

__all__ = ["Allocating"]

_WHERE = "[allocation]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocating:
    """The settings of an [allocation] table; unchanged while they and the ensemble are."""

    name: ClassVar[str] = "allocation"
    devices: str = "cpu"
    batch: int = 32  # most rows at a time

    def __post_init__(self) -> None:
        if not isinstance(self.devices, str):
            raise InputError(f"{_WHERE} devices: got {self.devices!r}; allowed: a text such as 'cuda:0,cpu:0-7'")
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise InputError(f"{_WHERE} batch: got {self.batch!r}; allowed: a whole number >= 1")

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "Allocating":
        """Return the stage of an [allocation] table."""
        known = [one.name for one in fields(cls)]
        for name in table:
            if name not in known:
                raise InputError(f"{_WHERE}: {name!r} is unknown; allowed: {', '.join(known)}{closest(name, known)}")
        return cls(**table)

    def inputs(self, work: Work) -> Mapping[str, Any]:
        """Return the settings and the ensemble's manifest."""
        return {"settings": asdict(self), "ensemble": work.read(self.name, f"{EXPORT}/manifest.json", "ensemble")}

    def run(self, work: Work) -> Outcome:
        """Place the members and write the plan."""
        from trainwright.ensemble import Ensemble
        from trainwright.serve import Plan

        plan = Plan.simple(Ensemble.load(work.folder / EXPORT), self.devices, batch=self.batch)
        plan.save(work.folder / PLACEMENT)
        return Outcome(content={"plan": plan.to_json(), "file": str(work.folder / PLACEMENT)}, outputs=(PLACEMENT,))

    def show(self, content: Mapping[str, Any]) -> None:
        """Print who runs where."""
        from trainwright.cli._serve_allocate import show_matrix
        from trainwright.serve import Plan

        show_matrix(Plan.from_json(content["plan"]))
        print(f"plan:       {content['file']}")

    def summary(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return devices and matrix."""
        plan = content["plan"]
        names = [device["name"] for device in plan["devices"]]
        return {"allocation": {"devices": names, "matrix": plan["matrix"], "objective": plan["objective"]}}
