"""The Manager inside a training under `verify-resume`: it records digests of all state at every step.

`main([PLAN, SCRIPT, *ARGUMENTS])` runs a script with this Manager in place of its own. Each step's line of the journal
has the batches that loaders of torch handed out and the losses that went backward since the last, and the state of
every item, the generators and the counters.
"""

import copy
import hashlib
import json
import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trainwright.checkpoint import manager as home
from trainwright.checkpoint.config import CheckpointConfig
from trainwright.checkpoint.manager import Manager
from trainwright.checkpoint.restore.restored import Restored
from trainwright.checkpoint.save.saver import SaveHandle
from trainwright.checkpoint.state.captured import capture_state
from trainwright.checkpoint.state.differences import Mode
from trainwright.checkpoint.state.rng import capture_rng_state, restore_rng_state
from trainwright.errors import CheckpointStateError
from trainwright.publishing import write_file

__all__ = ["ProofPlan", "main", "take_part"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProofPlan:
    """What one run of a proof does: up to `steps`, a save after `save_at`, a SIGKILL after `kill_at`.

    Checkpoints lie in `folder`: those of a script itself, or those of the study of a trial under `lease` (0: a script),
    which runs to its end by itself. The journal is `journal`; the items in `drop`, and "rng", are not restored.
    """

    folder: str
    journal: str
    steps: int = sys.maxsize
    save_at: int = 0
    kill_at: int = 0
    drop: tuple[str, ...] = ()
    ranks: int = 1
    lease: int = 0

    @classmethod
    def read(cls, path: str) -> "ProofPlan":
        """Return the plan in a file of JSON."""
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls(**{**content, "drop": tuple(content["drop"])})

    def write(self, path: Path) -> None:
        """Keep the plan as JSON."""
        write_file(path, json.dumps(asdict(self)))


@contextmanager
def take_part(plan: ProofPlan) -> Iterator[type[Manager]]:
    """Let what runs within take part in a proof by the Manager that this yields."""
    seen = _Seen()
    with _record_batches(seen):
        yield _make_manager(plan, seen)


def main(arguments: list[str]) -> None:
    """Run a script as the plan says."""
    import trainwright.checkpoint

    plan_file, script, *rest = arguments
    sys.argv = [script, *rest]
    sys.path[0] = str(Path(script).resolve().parent)
    with take_part(ProofPlan.read(plan_file)) as manager:
        home.Manager = trainwright.checkpoint.Manager = manager  # type: ignore[misc]  # whichever the script takes
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as leaving:
            _leave_together(leaving)
            raise


def _leave_together(leaving: SystemExit) -> None:
    """End a rank here: at the interpreter's end, destructors of torch.distributed may wait for each other for ever."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized() and not leaving.code:
        dist.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class _Seen:
    """Batches and losses since the last step."""

    def __init__(self) -> None:
        self.batches: list[str] = []
        self.losses: list[str] = []


def _make_manager(plan: ProofPlan, seen: _Seen) -> type[Manager]:
    """Return the Manager for one run of a proof."""

    class DigestingManager(Manager):
        """Keeps a journal of every step, and stops the run where the plan says."""

        def __init__(self, owner: Any, *, config: CheckpointConfig | None = None, **state: Any) -> None:
            if not plan.lease and not isinstance(owner, str | Path):
                raise CheckpointStateError(
                    f"verify-resume needs a Manager on a folder, got {type(owner).__name__}; give Manager('runs/x',"
                    " model=model), or the training function of the trial as module:function"
                )
            # The plan alone says when to save, and a save that fails must end the run.
            never = replace(config or CheckpointConfig(), interval=sys.maxsize, on_error="raise")
            self._items = {name: item for name, item in state.items() if name != "files"}
            super().__init__(owner if plan.lease else plan.folder, config=never, **state)

        def restore(self, step: int | None = None, *, mode: Mode = "exact", check: bool = True) -> Restored | None:
            """Restore all but what the plan drops, and write down what is there now."""
            unknown = sorted(set(plan.drop) - self._items.keys() - {"rng"})
            if unknown:
                raise CheckpointStateError(
                    f"--drop: the script keeps no {', '.join(unknown)}; allowed: rng, {', '.join(sorted(self._items))}"
                )
            # To show that an item matters, its restored state is replaced by the one before the restore.
            undo = [_undo_restore(name, self._items.get(name)) for name in plan.drop]
            restored = super().restore(step, mode=mode, check=check)
            if restored is not None:
                for put_back in undo:
                    put_back()
                self._write_line("restored")
            # Batches from before the restore are no part of the next step.
            seen.batches.clear()
            return restored

        def save(self, **settings: Any) -> SaveHandle:
            """Write down what is saved."""
            self._write_line("saved")
            return super().save(**settings)

        def count(self) -> None:
            """Count the step, write it down, and die where the plan says: the trial saves at its reports."""
            super().count()
            self._write_line("counted")
            self._kill_if_told()

        def step(self) -> None:
            """Count the step, write it down, and save, stop or die where the plan says."""
            super().step()
            self._write_line("step")
            if self.steps == plan.save_at:
                self.save(wait=True)
            self._kill_if_told()
            if self.steps >= plan.steps:
                self._keep_end()
                raise SystemExit(0)

        def close(self) -> None:
            """Keep what a trial came to."""
            if plan.lease:
                self._keep_end()
            super().close()

        def _kill_if_told(self) -> None:
            if self.steps == plan.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        def _write_line(self, event: str) -> None:
            line = {"step": self.steps, "event": event, "batches": seen.batches, "losses": seen.losses}
            own = {"counters": self.steps, "report": self._encode_report(None), "rng": capture_rng_state()}
            line["state"] = _digest_items({**self._items, **own})
            with Path(_of_rank(plan.journal)).open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(line)}\n")
            seen.batches, seen.losses = [], []

        def _keep_end(self) -> None:
            import torch

            modules = {name: item for name, item in self._items.items() if isinstance(item, torch.nn.Module)}
            torch.save({name: item.state_dict() for name, item in modules.items()}, _of_rank(f"{plan.journal}.end"))

    return DigestingManager


@contextmanager
def _record_batches(seen: _Seen) -> Iterator[None]:
    """Take note of every batch of torch's loaders and of every loss that goes backward."""
    import torch
    from torch.utils.data import dataloader

    batches: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001 -- all pass here
    following, backward = batches.__next__, torch.autograd.backward

    def noted_batch(iterator: Any) -> Any:
        batch = following(iterator)
        seen.batches.append(_digest_value(batch))
        return batch

    def noted_loss(tensors: Any, *arguments: Any, **settings: Any) -> None:
        seen.losses.append(_digest_value(tensors))
        backward(tensors, *arguments, **settings)

    batches.__next__ = noted_batch
    torch.autograd.backward = noted_loss
    try:
        yield
    finally:
        batches.__next__ = following
        torch.autograd.backward = backward


def _undo_restore(name: str, item: Any) -> Callable[[], object]:
    """Return what makes the restore of an item undone."""
    if name == "rng":
        return partial(restore_rng_state, capture_rng_state())
    if hasattr(item, "load_state_dict"):
        return partial(item.load_state_dict, copy.deepcopy(item.state_dict()))
    if hasattr(item, "set_state"):
        return partial(item.set_state, item.get_state())
    raise CheckpointStateError(
        f"--drop {name}: a {type(item).__name__} cannot be left as it was; allowed: rng, and items with state_dict"
    )


def _digest_items(state: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of every tensor and of the plain values of every item."""
    captured = capture_state(state)
    values = {item: _hash_bytes(json.dumps(tree, sort_keys=True).encode()) for item, tree in captured.tree.items()}
    return values | {name: _digest_value(tensor) for name, tensor in captured.tensors.items()}


def _digest_value(value: Any) -> str:
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        # The digest is of the whole tensor, whatever part of it this rank holds.
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        # Bits and not numbers, so that NaN is equal to itself and -0.0 is not 0.0.
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return _hash_bytes(f"{value.dtype} {tuple(value.shape)}".encode() + content)
    if isinstance(value, np.ndarray):
        return _hash_bytes(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    if isinstance(value, Mapping):
        return _hash_bytes("".join(f"{key} {_digest_value(item)} " for key, item in value.items()).encode())
    if isinstance(value, list | tuple):
        return _hash_bytes(" ".join(_digest_value(item) for item in value).encode())
    return _hash_bytes(repr(value).encode())


def _hash_bytes(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def _of_rank(path: str) -> str:
    import torch.distributed as dist

    together = dist.is_available() and dist.is_initialized()
    return f"{path}.{dist.get_rank() if together else 0}"
