"""Plans carried out: eight models trained on a CPU within shares of their memory, beside what people write by hand.

By hand the first k blocks are run again by `torch.utils.checkpoint` (not re-entrant), for all k up to every block:
whole, or by its selective contexts that keep matrix products, convolutions and attention. Of each, one step's peak at
the allocator is measured, and its seconds. At each share the fastest of those that keep it is taken, the plan gets no
more than that one's own peak as its budget, and both are timed with the plain model, in turns; how much longer the plan
takes is the median over the turns, with its interval. The plain model is timed twice: what its two runs differ by is
the noise. Gradients are compared bit by bit with the plain model's. Offloading by hooks is not among them: on a CPU
the host is the same memory.
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
from benchmarks.memory.allocator import allocator_peak
from benchmarks.memory.turns import over, seconds_in_turns
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from models import gpt, resnet, unet, vit
from trainwright import memory
from trainwright.errors import InfeasibleBudget
from trainwright.model.trace.step import call_model
from trainwright.train.parallel.recompute.run_context import keep_freed_pages
from trainwright.train.parallel.recompute.sample_step import loss_of
from trainwright.train.parallel.recompute.stage_calls import find_stages, stage_calls, stage_sites

__all__ = ["MODELS", "SHARES", "train"]

SHARES = (0.95, 0.85, 0.7, 0.6, 0.5)
"""Of the peak without a plan."""
_TRIED = 1
"""Turns, after one to warm up, by which the fastest of the baselines is chosen."""
_DEAR = frozenset({
    torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default,
    torch.ops.aten.convolution.default, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001  its name
})  # fmt: skip
"""What selective checkpointing keeps."""

Made = tuple[nn.Module, Any, Callable[[Any], torch.Tensor] | None]
"""A model, its sample, and its loss; without one the sum of what it returns."""
_WORDS, _LENGTH, _ROWS, _WIDTH, _LAYERS = 1000, 128, 4, 192, 6
_SIZES = {
    "vocab_size": _WORDS, "hidden_size": _WIDTH, "num_hidden_layers": _LAYERS, "num_attention_heads": 4,
    "intermediate_size": 4 * _WIDTH, "max_position_embeddings": _LENGTH, "pad_token_id": 0,
}  # fmt: skip


def _hugging_face(config: str, model: str, **sizes: Any) -> Made:
    import transformers

    made = getattr(transformers, model)(getattr(transformers, config)(**sizes))
    tokens = torch.randint(3, _WORDS, (_ROWS, _LENGTH))
    return made, {"input_ids": tokens, "labels": tokens}, lambda out: out.loss


def _gpt() -> Made:
    return gpt.GPT((_LAYERS, 4, _WIDTH), _WORDS, _LENGTH, dropout=0.1), torch.randint(_WORDS, (_ROWS, _LENGTH)), None


MODELS: dict[str, Callable[[], Made]] = {
    "GPT": _gpt,
    "Llama": lambda: _hugging_face("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2, **_SIZES),
    "BERT": lambda: _hugging_face("BertConfig", "BertForMaskedLM", **_SIZES),
    "T5": lambda: _hugging_face(
        "T5Config", "T5ForConditionalGeneration", vocab_size=_WORDS, d_model=_WIDTH, d_kv=48, num_heads=4, d_ff=768,
        num_layers=4, num_decoder_layers=4, pad_token_id=0, decoder_start_token_id=0, use_cache=False,
    ),
    "Mixtral": lambda: _hugging_face(
        "MixtralConfig", "MixtralForCausalLM", num_key_value_heads=2, num_local_experts=4, **_SIZES
    ),
    "ViT": lambda: (vit.ViT(_LAYERS, 4, _WIDTH, size=64, patch=4, classes=10), torch.randn(4, 3, 64, 64), None),
    "ResNet": lambda: (resnet.resnet50(10, 16), torch.randn(4, 3, 96, 96), None),
    "U-Net": lambda: (unet.unet(1, 2, 8, 3), torch.randn(2, 1, 128, 128), None),
}  # fmt: skip


def train(names: Sequence[str], turns: int) -> Iterator[dict[str, Any]]:
    """Yield a record per model and budget."""
    torch.set_num_threads(1)
    keep_freed_pages()  # as planned steps let the process do: the others gain by it as well
    for name in names:
        torch.manual_seed(0)
        yield from _Subject(name, *MODELS[name]()).records(turns)


class _Subject:
    def __init__(self, name: str, model: nn.Module, sample: Any, loss: Callable[[Any], torch.Tensor] | None) -> None:
        self.name, self.model, self.sample, self.loss = name, model.train(), sample, loss
        self.plain_bytes = self._peak(model)
        self.buffers = copy.deepcopy(list(model.buffers()))
        self.gradients = self._seeded_step(model)

    def records(self, turns: int) -> Iterator[dict[str, Any]]:
        rivals = dict(self._rivals())
        peaks = {name: self._peak(module) for name, module in rivals.items()}
        tried = seconds_in_turns({name: self._timed(module) for name, module in rivals.items()}, _TRIED)
        for share in SHARES:
            limit = int(share * self.plain_bytes)
            fitting = [name for name in rivals if peaks[name] <= limit]
            best = min(fitting, key=lambda name: min(tried[name]), default=None)
            # At equal peak: the plan gets what the best of the others takes.
            budget = limit if best is None else peaks[best]
            progress(f"training: {self.name}, {budget} of {self.plain_bytes} bytes, {best}")
            try:
                planned = memory.fit(self.model, self.sample, budget=budget, loss=self.loss)
            except InfeasibleBudget as error:
                yield {"model": self.name, "share": share, "budget_bytes": budget, "best": best,
                       "infeasible": error.minimal_bytes}  # fmt: skip
                continue
            yield self._compared(share, best, None if best is None else rivals[best], planned, turns)

    def _compared(
        self, share: float, best: str | None, rival: nn.Module | None, planned: Any, turns: int
    ) -> dict[str, Any]:
        plan, peak = planned.plan, self._peak(planned)
        timed = {"plain": self.model, "plain again": self.model, "planned": planned}
        timed |= {} if rival is None else {"best": rival}
        seconds = seconds_in_turns({name: self._timed(module) for name, module in timed.items()}, turns)
        compared = None if rival is None else over(seconds["planned"], seconds["best"])
        return {
            "model": self.name,
            "share": share,
            "stages": len(plan.chain.stages),
            "plain_bytes": self.plain_bytes,
            "budget_bytes": plan.budget_bytes,
            "predicted_bytes": plan.peak_bytes,
            "allocator_bytes": peak,
            "violation": peak > plan.budget_bytes,
            "solver": plan.solver,
            "options": sum(operation.option > 0 for operation in plan.operations),
            "predicted_overhead": plan.overhead,
            "overhead": over(seconds["planned"], seconds["plain"])[0],
            "noise": over(seconds["plain again"], seconds["plain"])[0],
            "best": best,
            "best_overhead": None if rival is None else over(seconds["best"], seconds["plain"])[0],
            "over_best": compared and compared[0],
            "over_best_interval": compared and compared[1],
            "seconds": {name: statistics.quantiles(found, n=4) for name, found in seconds.items()},
            "gradient_mismatches": sum(
                not torch.equal(one, other)
                for one, other in zip(self.gradients, self._seeded_step(planned), strict=True)
            ),
        }

    def _rivals(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield what people write by hand: the first k blocks checkpointed, whole or but for products, for each k."""
        names = find_stages(self.model)
        # Blocks that cannot be checkpointed, as those that hand on caches, fail or give other gradients: left out.
        for count in range(1, len(names) + 1):
            for kind, dear in (("", frozenset()), (", products kept", _DEAR)):
                module = _Checkpointed(self.model, names[:count], dear)
                try:
                    found = self._seeded_step(module)
                except Exception as error:  # noqa: BLE001  told, and left out
                    progress(f"training: {self.name}, first {count}{kind}: {error}")
                    continue
                # Running statistics are written twice; of gradients alone it is asked that they are the plain ones.
                count_of_gradients = len(list(self.model.parameters()))
                if all(map(torch.equal, self.gradients[:count_of_gradients], found)):
                    yield f"first {count} of {len(names)}{kind}", module

    def _peak(self, module: nn.Module) -> int:
        return allocator_peak(module, self.sample, self.loss)

    def _timed(self, module: nn.Module) -> Callable[[], None]:
        return functools.partial(self._step, module)

    def _step(self, module: nn.Module) -> None:
        module.zero_grad()
        loss_of(call_model(module, self.sample), self.loss).backward()

    def _seeded_step(self, module: nn.Module) -> list[torch.Tensor]:
        """Return gradients and buffers after a step from the same start."""
        for each, before in zip(module.buffers(), self.buffers, strict=True):
            each.copy_(before)
        torch.manual_seed(1)
        self._step(module)
        found = [torch.zeros(()) if each.grad is None else each.grad.clone() for each in self.model.parameters()]
        self.model.zero_grad()
        return [*found, *(each.clone() for each in self.model.buffers())]


class _Checkpointed(nn.Module):
    """A model some of whose blocks torch's checkpoint runs again in the backward pass, as people write it by hand."""

    def __init__(self, model: nn.Module, names: Sequence[str], kept: frozenset[Any]) -> None:
        super().__init__()
        self.model, self.sites = model, stage_sites(model, names)
        self.settings: dict[str, Any] = {"use_reentrant": False}
        if kept:
            self.settings["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _policy(kept))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        def run(_: Any, forward: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return checkpoint(functools.partial(forward, **named), *given, **self.settings)

        with stage_calls(self.model, self.sites, run) as forward:
            return forward(*args, **kwargs)


def _policy(kept: frozenset[Any]) -> Callable[..., CheckpointPolicy]:
    def choose(_: Any, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operation in kept else CheckpointPolicy.PREFER_RECOMPUTE

    return choose
