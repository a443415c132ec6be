"""Hugging Face families with random weights, small, and what a plan of them does on ranks beside one process."""

import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import get_context
from torch.multiprocessing.spawn import start_processes

from trainwright.cluster import Cluster
from trainwright.plan import Forecast, Layout, Oracle
from trainwright.plan.forecast import Ranking
from trainwright.profile import Profile
from trainwright.train import parallelise
from trainwright.train.parallel.dry_run import DryRun

__all__ = ["FAMILIES", "distance_from_serial", "make_model", "rank_family"]

SAMPLES, LENGTH, VOCABULARY, STEPS = 8, 12, 64, 3
_WIDTH, _LAYERS, _HEADS = 32, 4, 4
_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": _WIDTH,
    "intermediate_size": 2 * _WIDTH,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _HEADS,
}
_GROUPED = {**_SHAPE, "num_key_value_heads": 2}
_TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


@dataclass(frozen=True)
class _Family:
    model: str
    config: str
    settings: dict[str, Any]


# Dropout is off: ranks draw other numbers than one process does.
FAMILIES = {
    "gpt2": _Family(
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": VOCABULARY,
            "n_embd": _WIDTH,
            "n_layer": _LAYERS,
            "n_head": _HEADS,
            "n_positions": LENGTH,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
            **_TOKENS,
        },
    ),
    "llama": _Family("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "mistral": _Family("MistralForCausalLM", "MistralConfig", _GROUPED),
    "qwen2": _Family("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "qwen3": _Family("Qwen3ForCausalLM", "Qwen3Config", {**_GROUPED, "head_dim": 8}),
    "olmo2": _Family("Olmo2ForCausalLM", "Olmo2Config", _GROUPED),
    "glm4": _Family("Glm4ForCausalLM", "Glm4Config", {**_GROUPED, "head_dim": 8, **_TOKENS}),
    "gemma": _Family("GemmaForCausalLM", "GemmaConfig", {**_GROUPED, "head_dim": 8, **_TOKENS}),
    "phi": _Family("PhiForCausalLM", "PhiConfig", {**_SHAPE, "embd_pdrop": 0.0, "resid_pdrop": 0.0}),
    "opt": _Family(
        "OPTForCausalLM",
        "OPTConfig",
        {
            **{name: value for name, value in _SHAPE.items() if name != "intermediate_size"},
            "ffn_dim": 64,
            "word_embed_proj_dim": _WIDTH,
            "max_position_embeddings": LENGTH,
            "dropout": 0.0,
            **_TOKENS,
            "pad_token_id": 1,
        },
    ),
    "bert": _Family(
        "BertForMaskedLM",
        "BertConfig",
        {**_SHAPE, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": LENGTH},
    ),
    "t5": _Family(
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": VOCABULARY,
            "d_model": _WIDTH,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "dropout_rate": 0.0,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        },
    ),
    "bloom": _Family(
        "BloomForCausalLM",
        "BloomConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": _WIDTH,
            "n_layer": _LAYERS,
            "n_head": _HEADS,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            **_TOKENS,
        },
    ),
    "falcon": _Family(
        "FalconForCausalLM",
        "FalconConfig",
        {
            **{name: value for name, value in _SHAPE.items() if name != "intermediate_size"},
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
            **_TOKENS,
        },
    ),
    "mixtral": _Family("MixtralForCausalLM", "MixtralConfig", {**_GROUPED, "num_local_experts": 4}),
    "deepseek_v2": _Family(
        "DeepseekV2ForCausalLM",
        "DeepseekV2Config",
        {
            **_SHAPE,
            "num_key_value_heads": _HEADS,
            "first_k_dense_replace": 1,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": _WIDTH,
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            **_TOKENS,
            **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
        },
    ),
    "granitemoe": _Family(
        "GraniteMoeForCausalLM",
        "GraniteMoeConfig",
        {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, **_TOKENS},
    ),
}


def make_model(family: str) -> nn.Module:
    """Return a small model of a family, always with the same weights."""
    import transformers

    known = FAMILIES[family]
    torch.manual_seed(7)
    config = getattr(transformers, known.config)(**known.settings)
    return getattr(transformers, known.model)(config).train()  # type: ignore[no-any-return]


def batch_of(step: int) -> dict[str, torch.Tensor]:
    """Return the tokens and labels of a step."""
    generator = torch.Generator().manual_seed(step)
    return {
        name: torch.randint(3, VOCABULARY, (SAMPLES, LENGTH), generator=generator) for name in ("input_ids", "labels")
    }


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss that the model computes itself."""
    return model(**batch).loss  # type: ignore[no-any-return]


def rank_family(family: str, devices: int) -> Ranking:
    """Rank the plans of a family as a user would, each plan tried in a dry run."""
    model, sample = make_model(family), batch_of(0)
    profile = Profile.trace(model, sample, loss=loss_of)
    dry_run = DryRun(model, sample, loss=loss_of)
    return Oracle(Cluster.preset("dgx-a100")).rank(profile, batch=SAMPLES, devices=devices, dry_run=dry_run)


def distance_from_serial(family: str, plans: list[Forecast], devices: int) -> list[float | str]:
    """Train each plan on ranks of gloo for three steps; return how far they are from one process, or what failed.

    That is the largest difference of losses, gradients and parameters on any rank, over the largest number.
    """
    with tempfile.TemporaryDirectory() as folder:
        layouts = [plan.layout for plan in plans]
        # Loaded once, not by every rank.
        get_context("forkserver").set_forkserver_preload(["transformers", "trainwright.train.parallel.setup"])
        arguments = (devices, folder, family, layouts)
        start_processes(_train_on_rank, arguments, nprocs=devices, start_method="forkserver")
        found = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(devices)]
    return [
        next((each for each in row if isinstance(each, str)), max(map(_number, row)))
        for row in zip(*found, strict=True)
    ]


def _number(found: float | str) -> float:
    return float("inf") if isinstance(found, str) else found


def _train_on_rank(rank: int, devices: int, folder: str, family: str, layouts: list[Layout]) -> None:
    torch.set_num_threads(1)
    found: list[float | str] = ["not reached: a plan before has failed"] * len(layouts)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=devices, timeout=timedelta(seconds=60))
    try:
        for number, layout in enumerate(layouts):
            found[number] = _train_beside_serial(make_model(family), make_model(family), layout)
    except Exception as error:  # noqa: BLE001 -- it is reported
        found[number] = f"{type(error).__name__}: {error}"
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def _train_beside_serial(alone: nn.Module, model: nn.Module, layout: Layout) -> float:
    ours = parallelise(model, layout)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (alone, ours)]
    worst = 0.0
    for step in range(STEPS):
        batch = batch_of(step)
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = loss_of(alone, batch)
        expected.backward()
        mine = {name: each.chunk(ours.data_ranks)[ours.data_rank] for name, each in batch.items()}
        # A pipeline cuts its batch by itself.
        count = 1 if layout.degrees.pipeline > 1 else layout.microbatches
        cuts = zip(*(each.chunk(count) for each in mine.values()), strict=True)
        loss = ours.backward(loss_of, [(1 / count, dict(zip(mine, cut, strict=True))) for cut in cuts])
        gradients = dict(alone.named_parameters())
        pairs = [(each.grad, gradients[name].grad) for name, each in ours.module.named_parameters()]
        worst = max(worst, _far(loss, expected), *(_far(one, other) for one, other in pairs))
        for optimizer in optimizers:
            optimizer.step()
    known = dict(alone.named_parameters())
    return max(worst, *(_far(each, known[name]) for name, each in ours.module.named_parameters()))


def _far(found: Any, expected: Any) -> float:
    """Return the largest difference over the largest number; a gradient on one side only is infinitely far."""
    if found is None or expected is None:
        return 0.0 if found is expected else float("inf")
    whole = found.full_tensor() if hasattr(found, "full_tensor") else found
    # Queries, keys and values in one are kept as (outputs, 3, inputs).
    if whole.ndim > expected.ndim:
        whole = whole.transpose(0, 1).flatten(0, 1)
        whole = whole if whole.shape == expected.shape else whole.T
    difference = (whole.detach().reshape(expected.shape) - expected.detach()).abs().max()
    return float(difference / expected.detach().abs().max().clamp_min(1e-3))
