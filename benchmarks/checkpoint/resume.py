"""Resume, bit by bit: a training that stops in the middle and goes on in new processes beside one that does not.

    python benchmarks/checkpoint/resume.py --quick

A small CNN with batch normalisation, dropout and augmentation, AdamW and a schedule. A combination is: workers of the
loader after the resume (0, 1, 2, 4; before it: another number) x ranks (1, 2, 4; gloo) x precision (float32, bfloat16
by autocast, that with a gradient scaler) x nothing more, gradient accumulation or an average of the weights x stopped
at the edge of an epoch or at a step in its middle drawn at random. Batches, losses and all state of every step and
rank after the resume must be those of the run that was not stopped. The chain of sizes 1 -> 2 -> 4 -> 1 is run with
the reduction of `Slots` (all parameters and moments bit by bit) and with DDP (samples bit by bit; parameters differ, as
batch statistics and dropout are each rank's own).
"""

import argparse
import itertools
import json
import multiprocessing
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["CASES", "QUICK", "Case", "launch", "resize", "resume", "train"]

SEED = 5
SAMPLES, BATCH = 48, 8  # six batches an epoch
STEPS = 11


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One way to train, and the step after which it is stopped."""

    ranks: int = 1
    workers: int = 0
    precision: str = "float32"  # or "bfloat16", "scaled"
    extra: str = "plain"  # or "accumulation", "average"
    reduction: str = "ddp"  # or "slots"
    mode: str = "exact"  # of the restore
    stop: int = 4


_draw = random.Random(SEED)
CASES = tuple(
    Case(
        ranks=ranks,
        workers=workers,
        precision=precision,
        extra=extra,
        stop=6 if edge else _draw.choice((2, 3, 4, 5, 7, 8)),
    )
    for ranks, precision, extra, edge in itertools.product(
        (1, 2, 4), ("float32", "bfloat16", "scaled"), ("plain", "accumulation", "average"), (True, False)
    )
    for workers in (0, 1, 2, 4)
)
QUICK = (
    Case(workers=2, extra="average", stop=3),
    Case(workers=0, extra="accumulation", precision="scaled", stop=3),
    Case(ranks=2, workers=1, precision="bfloat16", stop=6),
)


def resume(cases: Sequence[Case] = CASES) -> tuple[int, list[str]]:
    """Return the number of combinations that were run, and what differs in those that did not come out equal."""
    mismatches = []
    with tempfile.TemporaryDirectory() as name:
        whole: dict[Case, list[list[dict[str, Any]]]] = {}
        halves: dict[Case, Path] = {}
        for number, case in enumerate(cases):
            alone = replace(case, workers=0, stop=0)  # workers change nothing: so the run beside has none
            half = replace(case, workers=0)
            if alone not in whole:
                whole[alone] = run(Path(name), f"whole-{number}", alone, steps=STEPS)
            if half not in halves:
                halves[half] = Path(name) / f"checkpoints-{number}"
                before = replace(case, workers=(case.workers + 1) % 3)
                run(Path(name), f"half-{number}", before, steps=case.stop, save_at=case.stop, folder=halves[half])
            rest = run(Path(name), f"rest-{number}", case, steps=STEPS, folder=halves[half])
            found = difference(whole[alone], rest, case.stop)
            if found:
                mismatches.append(f"{case}: {found}")
    return len(cases), mismatches


def resize(reduction: str) -> tuple[list[str], float]:
    """Go on with 1, 2, 4 and 1 ranks; return what differs from one rank throughout, and parameters by how much.

    With "slots" all items must be equal, with "ddp" the samples alone.
    """
    sizes, every = (1, 2, 4, 1), 3
    case = Case(reduction=reduction, mode="best_effort")  # the generators of ranks do not go with them
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "checkpoints"
        whole = run(Path(name), "whole", case, steps=every * len(sizes))
        mismatches: list[str] = []
        for number, ranks in enumerate(sizes):
            last = every * (number + 1)
            part = run(
                Path(name), f"part-{number}", replace(case, ranks=ranks), steps=last, save_at=last, folder=folder
            )
            if reduction == "slots":
                mismatches += filter(None, [difference(whole * ranks, part, last - every, of=_SAME_AT_ANY_SIZE)])
            mismatches += filter(None, [_other_samples(whole[0], part, last - every)])
        ends = [_end(Path(name) / f"{run}.journal.end.0") for run in ("whole", f"part-{len(sizes) - 1}")]
        apart = max(float((ends[0][key] - ends[1][key]).abs().max()) for key in ends[0])
    return mismatches, apart


_SAME_AT_ANY_SIZE = ("model", "optimizer", "schedule", "loader", "slots")


def difference(
    whole: list[list[dict[str, Any]]], rest: list[list[dict[str, Any]]], stop: int, of: Iterable[str] = ()
) -> str:
    """Return the first thing that is not as in the whole run after `stop`, "" if all is, per rank.

    The buffers of ranks but the first are compared from the first step on: DDP hands them out before it.
    """
    for rank, (expected, lines) in enumerate(zip(whole, rest, strict=True)):
        by_step = {line["step"]: line for line in expected}
        if stop and (lines[0]["event"], lines[0]["step"]) != ("restored", stop):
            return f"rank {rank} did not go on from step {stop}"
        for line in lines:
            was = by_step[line["step"]]
            if line["step"] > stop and not of and (line["batches"], line["losses"]) != (was["batches"], was["losses"]):
                return f"rank {rank}, step {line['step']}: batches or losses"
            for name in sorted(was["state"].keys() | line["state"].keys()):
                if of and name.partition(".")[0] not in of:
                    continue
                if rank and line["event"] == "restored" and "running_" in name:
                    continue
                if line["state"].get(name) != was["state"].get(name):
                    return f"rank {rank}, step {line['step']}: {name}"
    return ""


class Accumulation:
    """Counts micro-batches: each `every`-th ends a step. Its state is the gradients summed so far, and the phase."""

    def __init__(self, model: Any, *, every: int) -> None:
        self.every = every
        self.phase = 0
        self._model = model

    def full(self) -> bool:
        """Count a micro-batch; return whether the optimizer is to step now."""
        self.phase = (self.phase + 1) % self.every
        return self.phase == 0

    def state_dict(self) -> dict[str, Any]:
        """Return the phase and the gradients that are there."""
        gradients = {name: each.grad for name, each in self._model.named_parameters() if each.grad is not None}
        return {"phase": self.phase, "gradients": gradients if self.phase else {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the same phase with the same sums."""
        self.phase = state["phase"]
        for name, parameter in self._model.named_parameters():
            gradient = state["gradients"].get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)


def train(manager_of: Any, case: Case) -> None:
    """Train until the Manager says that it is enough."""
    import torch
    from torch.nn.functional import cross_entropy

    from trainwright.train import Loader, Slots, seed_all

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    seed_all(SEED)
    model = _network()
    # else DDP regroups gradients after its first step, so that the first one after a resume is summed in another order
    ddp = partial(torch.nn.parallel.DistributedDataParallel, find_unused_parameters=True)
    together = ddp(model) if case.ranks > 1 and case.reduction == "ddp" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 20)
    loader = Loader(_Images(), global_batch=BATCH, seed=SEED, workers=case.workers)
    items = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    scaler = torch.amp.GradScaler(
        "cpu", enabled=case.precision == "scaled", init_scale=1000.0, growth_factor=1.5, growth_interval=3
    )
    accumulation = Accumulation(model, every=2 if case.extra == "accumulation" else 1)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    slots = Slots(model, count=4, seed=SEED) if case.reduction == "slots" else None
    extras = {"accumulation": accumulation, "average": average}
    items |= {name: item for name, item in extras.items() if case.extra == name}
    items |= {"scaler": scaler} if case.precision == "scaled" else {}
    items |= {"slots": slots} if slots else {}

    def loss_of(module: torch.nn.Module, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=case.precision != "float32"):
            return scaler.scale(cross_entropy(module(batch[0]), batch[1]) / accumulation.every)

    manager = manager_of("none", **items)
    manager.restore(mode=case.mode)
    while True:
        for batch in loader:
            if slots:
                slots.backward(batch, loss_of)
            else:
                loss_of(together, batch).backward()
            if accumulation.full():
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                schedule.step()
                average.update_parameters(model)
            manager.step()


def run(home: Path, name: str, case: Case, **plan: Any) -> list[list[dict[str, Any]]]:
    """Run a case in new processes, a process a rank; return the journal of each rank, but for what was saved."""
    journal = home / f"{name}.journal"
    checkpoints = plan.pop("folder", home / f"checkpoints-{name}")
    launch(case, {"folder": str(checkpoints), "journal": str(journal), **plan})
    files = [Path(f"{journal}.{rank}") for rank in range(case.ranks)]
    lines = [[json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] for file in files]
    return [[line for line in own if line["event"] != "saved"] for own in lines]


def launch(case: Case, plan: dict[str, Any], training: Any = train) -> None:
    """Let `training` take part in a proof as `plan` says, in forked processes: torch is loaded here already."""
    import torch._dynamo  # loaded here, so that no child has to: optimizers load it
    import torch.distributed.tensor  # noqa: F401 -- likewise, by checkpoints

    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as meeting:
        members = [
            context.Process(target=_member, args=(rank, case, plan, f"file://{meeting}/store", training))
            for rank in range(case.ranks)
        ]
        for member in members:
            member.start()
        for member in members:
            member.join()
    failed = [
        member.exitcode for member in members if member.exitcode and not (plan.get("kill_at") and member.exitcode < 0)
    ]
    if failed:
        raise RuntimeError(f"{case}: a rank ended with status {failed[0]}")


def _member(rank: int, case: Case, plan: dict[str, Any], store: str, training: Any) -> None:
    import torch

    from trainwright.checkpoint.tools.step_digests import ProofPlan, take_part

    torch.set_num_threads(1)
    if case.ranks > 1:
        torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=case.ranks)
    status = 0
    try:
        with take_part(ProofPlan(**plan)) as manager_of:
            training(manager_of, case)
    except SystemExit as leaving:
        status = int(leaving.code or 0)
    except Exception:  # noqa: BLE001 -- the parent sees the status, and a person the traceback
        traceback.print_exc()
        status = 1
    if case.ranks > 1 and not status:
        torch.distributed.barrier()
    sys.stderr.flush()
    os._exit(status)  # the destructors of DDP and gloo may wait for each other for ever


def _other_samples(whole: list[dict[str, Any]], part: list[list[dict[str, Any]]], stop: int) -> str:
    """Compare where the loader stands: the global batches are cut otherwise, so their digests are others."""
    expected = {line["step"]: line["state"]["loader"] for line in whole}
    for rank, lines in enumerate(part):
        for line in lines:
            if line["step"] > stop and line["state"]["loader"] != expected[line["step"]]:
                return f"rank {rank}, step {line['step']}: loader"
    return ""


def _end(path: Path) -> dict[str, Any]:
    import torch

    end: dict[str, dict[str, Any]] = torch.load(path, weights_only=True)
    return end["model"]


class _Images:
    """Images of noise, made anew by an augmentation that draws from torch's and Python's generators."""

    def __init__(self) -> None:
        import torch

        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(SAMPLES, 3, 8, 8, generator=generator)
        self.labels = torch.randint(4, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        import torch

        image = self.images[index].roll(random.randrange(8), -1)
        return image + 0.1 * torch.randn(3, 8, 8), self.labels[index]


def _network() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(288, 4)
    )


def main(argv: list[str] | None = None) -> None:
    """Run the grid and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few combinations")
    arguments = parser.parse_args(argv)
    count, mismatches = resume(QUICK if arguments.quick else CASES)
    print(f"{count} combinations, {len(mismatches)} mismatches", *mismatches, sep="\n")
    for reduction in ("slots", "ddp"):
        found, apart = resize(reduction)
        print(f"1 -> 2 -> 4 -> 1, {reduction}: parameters {apart:.1e} apart", *found, sep="\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main()
