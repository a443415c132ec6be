"""Plans carried out: the example models trained on a CPU within shares of their memory, beside torch's checkpointing.

The baselines run the first k of the same stages again by `torch.utils.checkpoint` (not re-entrant), for all k up to
every stage, as people do by hand. Of each, one step's peak of tracked bytes is measured; at each budget the one that
the simulator calls the fastest of those that keep it is timed against the plan and the plain model, in turns; how much
longer the plan takes is the median over the turns, with its interval. Gradients are compared bit by bit with the plain
model's.
"""

import copy
import functools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks._report import progress
from benchmarks.memory.turns import over, seconds_in_turns
from torch import nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from models import densenet, gpt, inception, resnet, unet, vit
from trainwright import memory
from trainwright.plan.memory.known_plans import segments
from trainwright.plan.memory.planning import full_bytes, minimal_bytes
from trainwright.plan.memory.simulate import simulate
from trainwright.train.parallel.recompute.fitting import chain_of
from trainwright.train.parallel.recompute.sample_step import tracked_peak
from trainwright.train.parallel.recompute.stage_calls import stage_calls, stage_sites

__all__ = ["MODELS", "SHARES", "train"]

SHARES = (1.0, 0.7, 0.5, 0.35, 0.0)
"""Of the peak without a plan; 0 stands for the least feasible, as do shares below it."""

Made = tuple[nn.Module, torch.Tensor]


def _made(model: nn.Module, *shape: int) -> Made:
    return model, torch.randn(shape)


def _gpt(layers: int, length: int, batch: int) -> Made:
    return gpt.GPT((layers, 4, 128), 1000, length, dropout=0.1), torch.randint(1000, (batch, length))


MODELS: dict[str, Callable[[], Made]] = {
    "ResNet-18": lambda: _made(resnet.resnet18(10, 32), 8, 3, 128, 128),
    "ResNet-50": lambda: _made(resnet.resnet50(10, 16), 8, 3, 96, 96),
    "DenseNet": lambda: _made(densenet.DenseNet((4, 8, 6), growth=12, classes=10), 8, 3, 128, 128),
    "Inception": lambda: _made(inception.inception(10, 6), 8, 3, 128, 128),
    "U-Net": lambda: _made(unet.unet(1, 2, 8, 3), 4, 1, 128, 128),
    "GPT": lambda: _gpt(8, 128, 8),
    "ViT": lambda: _made(vit.ViT(8, 4, 96, size=64, patch=4, classes=10), 8, 3, 64, 64),
}


def train(names: Sequence[str], turns: int) -> Iterator[dict[str, Any]]:
    """Yield a record per model and budget."""
    torch.set_num_threads(1)
    for name in names:
        torch.manual_seed(0)
        model, batch = MODELS[name]()
        yield from _Subject(name, model, batch).records(turns)


class _Subject:
    def __init__(self, name: str, model: nn.Module, batch: torch.Tensor) -> None:
        self.name, self.model, self.batch = name, model, batch
        self.chain = chain_of(model, batch)
        self.plain_bytes = tracked_peak(model, batch)
        self.buffers = copy.deepcopy(list(model.buffers()))
        self.gradients = self._step(model)

    def records(self, turns: int) -> Iterator[dict[str, Any]]:
        baselines = list(self._baselines())
        full, least = full_bytes(self.chain), minimal_bytes(self.chain)
        for budget in dict.fromkeys(max(int(share * full), least) for share in SHARES):
            progress(f"training: {self.name}, {budget} of {full} bytes")
            plan = memory.plan(self.chain, budget=budget)
            planned = memory.apply(self.model, plan)
            peak = tracked_peak(planned, self.batch)
            fitting = [each for each in baselines if each[2] <= budget]
            best = min(fitting, key=lambda each: each[3], default=None)
            timed = {"plain": self.model, "planned": planned} | ({} if best is None else {"baseline": best[1]})
            mismatches = self._mismatches(planned)
            steps = {each: functools.partial(_step, module, self.batch) for each, module in timed.items()}
            seconds = seconds_in_turns(steps, turns)
            compared = None if best is None else over(seconds["planned"], seconds["baseline"])
            yield {
                "model": self.name,
                "stages": len(self.chain.stages),
                "budget_share": budget / full,
                "least_share": least / full,
                "budget_bytes": budget,
                "plain_bytes": self.plain_bytes,
                "solver": plan.solver,
                "planned_overhead": plan.overhead,
                "predicted_bytes": plan.peak_bytes,
                "tracked_bytes": peak,
                "violation": peak > budget,
                "gradient_mismatches": mismatches,
                "seconds": {each: statistics.quantiles(found, n=4) for each, found in seconds.items()},
                "overhead": over(seconds["planned"], seconds["plain"])[0],
                "baseline": None if best is None else best[0],
                "baseline_bytes": None if best is None else best[2],
                "overhead_over_baseline": compared and compared[0],
                "overhead_over_baseline_interval": compared and compared[1],
            }

    def _baselines(self) -> Iterator[tuple[str, nn.Module, int, float]]:
        """Yield name, module, tracked peak and simulated seconds of checkpointing the first k stages, for each k."""
        names = [stage.name for stage in self.chain.stages]
        for count in range(len(names) + 1):
            name = "plain" if not count else "every block" if count == len(names) else f"first {count}"
            module = _Checkpointed(self.model, names[:count]) if count else self.model
            simulated = simulate(self.chain, segments(self.chain, range(1, count + 2))).seconds
            yield name, module, tracked_peak(module, self.batch), simulated

    def _mismatches(self, planned: nn.Module) -> int:
        found = self._step(planned)
        return sum(not torch.equal(one, other) for one, other in zip(self.gradients, found, strict=True))

    def _step(self, model: nn.Module) -> list[torch.Tensor]:
        """Return gradients and buffers after a step from the same start."""
        for each, before in zip(model.buffers(), self.buffers, strict=True):
            each.copy_(before)
        torch.manual_seed(1)
        _step(model, self.batch)
        found = [torch.zeros(()) if each.grad is None else each.grad.clone() for each in model.parameters()]
        model.zero_grad()
        return [*found, *(each.clone() for each in model.buffers())]


class _Checkpointed(nn.Module):
    """A model some of whose stages torch's checkpoint runs again in the backward pass, as people write it by hand."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.sites = model, stage_sites(model, names)

    def forward(self, batch: torch.Tensor) -> Any:
        with stage_calls(self.model, self.sites, _checkpointed) as forward:
            return forward(batch)


def _checkpointed(_: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def _step(model: nn.Module, batch: torch.Tensor) -> None:
    model.zero_grad()
    (model(batch) * 1).sum().backward()
