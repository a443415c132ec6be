"""Stores the checkpoints of a trial, records in the ledger what was saved, and keeps a clone's own hyperparameters."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.checkpoint import Manager, Restored
from trainwright.checkpoint.owner import Owner
from trainwright.checkpoint.save.publish import Published
from trainwright.errors import CheckpointStateError
from trainwright.ledger import Record, facts
from trainwright.train.assignment import TrialEnd

__all__ = ["TrialCheckpoints", "read_options", "set_options"]


@dataclass(slots=True, kw_only=True)
class TrialCheckpoints(Owner):
    """A trial of the study in `home`. `tell` takes records for the ledger, `go_on` a restored checkpoint.

    `told_to_leave` says that the allocation ends.
    """

    trial: int
    home: Path
    tell: Callable[[Record], None]
    go_on: Callable[[Restored], None]
    told_to_leave: Callable[[], bool]
    manager: Manager | None = None
    within_epochs: bool = False
    """Whether the run can save at any step."""

    def claim_checkpoints(self, manager: Manager) -> None:
        """Save by this manager, before each report; one trial has one."""
        if self.manager is not None:
            raise CheckpointStateError(
                f"trial {self.trial} has a manager of its checkpoints; make one, with all that is to be kept, or call "
                "trial.prepare, which makes one"
            )
        self.manager = manager

    def leaves(self) -> bool:
        """Whether the allocation of the trial ends."""
        # Who asks calls `Manager.step`, and so saves within epochs.
        self.within_epochs = True
        return self.told_to_leave()

    def leave(self) -> None:
        """End the trial here; its next run resumes from the checkpoint."""
        raise TrialEnd(preempted=True)

    def committed(self, published: Published, *, blocking_seconds: float, persist_seconds: float) -> None:
        """Tell the ledger of a checkpoint, with the next report at the latest."""
        seconds = {"blocking_seconds": blocking_seconds, "persist_seconds": persist_seconds}
        self.tell(self.record(published, **seconds))

    def damaged(self, path: Path, why: str) -> None:
        """Tell the ledger of a checkpoint that was set aside."""
        note = {"path": self._named(path), "why": why}
        self.tell(facts.note("checkpoint_corrupt", note, self.trial))

    def resumed(self, restored: Restored) -> None:
        """Continue after its epoch; the ledger records differences from when it was saved."""
        Owner.resumed(self, restored)
        self.last_report = restored.manifest.report
        if restored.differences:
            note = [str(difference) for difference in restored.differences]
            self.tell(facts.note("checkpoint_differences", note, self.trial))
        self.go_on(restored)

    def record(self, checkpoint: Published | Restored, **seconds: float) -> Record:
        """Return the ledger's record of a checkpoint."""
        manifest = checkpoint.manifest
        return facts.checkpointed(
            self.trial,
            self.lease,
            epoch=manifest.epoch,
            path=self._named(checkpoint.path),
            bytes=manifest.size,
            digest=manifest.digest,
            step=manifest.step,
            within_epochs=self.within_epochs,
            **seconds,
        )

    def _named(self, path: Path) -> str:
        """Return a path as the ledger has it: below the study, if it is there."""
        return path.relative_to(self.home).as_posix() if path.is_relative_to(self.home) else str(path)


_OPTIONS = frozenset({"lr", "initial_lr", "weight_decay", "momentum", "betas", "eps", "alpha", "dampening"})
"""What optimizers call their hyperparameters; whatever else is in their groups may be learnt."""


def read_options(optimizer: Any) -> list[dict[str, Any]]:
    """Return the hyperparameters of each group of the optimizer."""
    return [{name: group[name] for name in _OPTIONS & group.keys()} for group in optimizer.param_groups]


def set_options(optimizer: Any, schedule: Any, options: list[dict[str, Any]]) -> None:
    """Go on with these, though another state was restored; rates stay where a schedule has brought them."""
    scheduled = [schedule, *getattr(schedule, "_schedulers", ())] if schedule is not None else []
    for place, (group, own) in enumerate(zip(optimizer.param_groups, options, strict=True)):
        # A plateau's schedule knows no first rate: it begins with that of the optimizer.
        ratio = own["initial_lr"] / group["initial_lr"] if group.get("initial_lr") else 0.0
        rate = group["lr"] * ratio if scheduled and ratio else own["lr"]
        group.update({**own, "lr": rate})
        for one in scheduled if ratio else ():
            one.base_lrs[place] *= ratio
