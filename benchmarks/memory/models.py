"""Architectures as their packages define them, with random weights, trained by a plan in 60 % of their plain peak.

    [WIDTH=512] python -m benchmarks.memory.models --json [--models GPT2 T5 ...]

Of each: whether `fit` takes it, within 60 % or else the least budget that it names; whether one step's peak at the
allocator keeps to that; whether result, gradients, buffers and random numbers are the plain step's, bit by bit; and
the seconds of `fit` in plain steps. At the width of 64 a plain step takes 4 to 160 ms, and `fit` is mostly Python;
at 512 it takes seconds. Models of a package that is not installed are left out and named.
"""

import argparse
import copy
import importlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.memory.allocator import allocator_peak
from torch import nn

from trainwright import memory
from trainwright.errors import InfeasibleBudget
from trainwright.model.trace.step import call_model
from trainwright.train.parallel.recompute.sample_step import loss_of
from trainwright.train.parallel.recompute.trees import tensors_of

__all__ = ["MODELS", "SHARE", "check_model"]

SHARE = 0.6
ROWS, LENGTH, WORDS, LAYERS = 8, 64, 97, 6
WIDTH = int(os.environ.get("WIDTH", "64"))
Made = tuple[nn.Module, Any, Callable[[Any], torch.Tensor] | None]
"""A model, its sample, and its loss; without one the sum of what it returns."""

_WIDTHS = {
    "vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "intermediate_size": 2 * WIDTH, "max_position_embeddings": LENGTH, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_IMAGES = {"image_size": 32, "patch_size": 4, "num_labels": 7}


def _tokens() -> torch.Tensor:
    return torch.randint(3, WORDS, (ROWS, LENGTH))


def _made(config: str, model: str, sample: Callable[[], Any], **settings: Any) -> Callable[[], Made]:
    """Return what makes a model of transformers from a configuration; with labels its loss is its own."""

    def make() -> Made:
        import transformers

        made = getattr(transformers, config)(**settings)
        kind = getattr(transformers, model)
        built = kind.from_config(made) if model.startswith("Auto") else kind(made)
        given = sample()
        return built, given, (lambda out: out.loss) if "labels" in given else None

    return make


def _decoder(name: str, **settings: Any) -> Callable[[], Made]:
    """Return what makes a language model that predicts the next token."""

    def sample() -> dict[str, Any]:
        tokens = _tokens()
        return {"input_ids": tokens, "labels": tokens}

    return _made(f"{name}Config", "AutoModelForCausalLM", sample, **_WIDTHS | settings)


def _encoder(name: str, **settings: Any) -> Callable[[], Made]:
    """Return what makes an encoder with a padding mask: ragged lengths."""

    def sample() -> dict[str, Any]:
        tokens = _tokens()
        mask = (torch.arange(LENGTH) < torch.randint(LENGTH // 2, LENGTH, (ROWS, 1))).long()
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens}

    return _made(f"{name}Config", "AutoModelForMaskedLM", sample, **_WIDTHS | settings)


def _translator(name: str, **settings: Any) -> Callable[[], Made]:
    """Return what makes an encoder and a decoder."""

    def sample() -> dict[str, Any]:
        return {"input_ids": _tokens(), "labels": _tokens()}

    sizes = {
        "vocab_size": WORDS, "d_model": WIDTH, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0, "max_position_embeddings": LENGTH,
    }  # fmt: skip
    return _made(f"{name}Config", "AutoModelForSeq2SeqLM", sample, **sizes | settings)


def _image(name: str, **settings: Any) -> Callable[[], Made]:
    """Return what makes a classifier of images."""

    def sample() -> dict[str, Any]:
        return {"pixel_values": torch.randn(ROWS, 3, 32, 32), "labels": torch.randint(7, (ROWS,))}

    return _made(f"{name}Config", "AutoModelForImageClassification", sample, **settings)


def _vit(name: str, **settings: Any) -> Callable[[], Made]:
    words = {name: _WIDTHS[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    return _image(name, **words | {"intermediate_size": 128} | _IMAGES | settings)


class _NanoGPT(nn.Module):
    """As nanoGPT is written: an assertion on the length, positions made in the forward, a tied head."""

    def __init__(self) -> None:
        super().__init__()
        tokens = nn.Embedding(WORDS, WIDTH)
        self.transformer = nn.ModuleDict({
            "wte": tokens, "wpe": nn.Embedding(LENGTH, WIDTH), "drop": nn.Dropout(0.1),
            "h": nn.ModuleList(_NanoBlock() for _ in range(LAYERS)), "ln_f": nn.LayerNorm(WIDTH),
        })  # fmt: skip
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.lm_head.weight = tokens.weight

    def forward(self, idx: torch.Tensor, targets: torch.Tensor | None = None) -> Any:
        assert idx.size(1) <= LENGTH, "too long"
        parts: Any = self.transformer
        x = parts.drop(parts.wte(idx) + parts.wpe(torch.arange(idx.size(1), device=idx.device)))
        for block in parts.h:
            x = block(x)
        logits: torch.Tensor = self.lm_head(parts.ln_f(x))
        if targets is None:
            return logits, None
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class _NanoBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.size()
        q, k, v = (
            each.view(rows, length, 4, width // 4).transpose(1, 2) for each in self.c_attn(self.ln_1(x)).chunk(3, 2)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(rows, length, width))
        out: torch.Tensor = x + self.mlp(self.ln_2(x))
        return out


class _Autocast(_NanoGPT):
    """Its forward switches to half precision by itself."""

    def forward(self, idx: torch.Tensor, targets: torch.Tensor | None = None) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(idx, targets)


class _Recurrent(nn.Module):
    """Stacked LSTMs, one module a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.LSTM(WIDTH, WIDTH, batch_first=True) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, state = self.embed(tokens), None
        for layer in self.layers:
            x, state = layer(x, state)
        out: torch.Tensor = self.head(x)
        return out


def _nano(kind: type[_NanoGPT]) -> Callable[[], Made]:
    return lambda: (kind(), {"idx": _tokens(), "targets": _tokens()}, lambda out: out[1])


def _torch_encoder() -> Made:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, LAYERS), torch.randn(ROWS, LENGTH, WIDTH), None


def _torch_transformer() -> Made:
    model = nn.Transformer(WIDTH, 4, 4, 4, 128, batch_first=True)
    return model, (torch.randn(ROWS, LENGTH, WIDTH), torch.randn(ROWS, LENGTH, WIDTH)), None


def _diffusers_unet() -> Made:
    diffusers: Any = importlib.import_module("diffusers")
    blocks = {
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }
    model = diffusers.UNet2DModel(sample_size=32, block_out_channels=(32, 64), norm_num_groups=8, **blocks)
    sample = {"sample": torch.randn(4, 3, 32, 32), "timestep": torch.tensor(3)}
    return model, sample, lambda out: out.sample.square().mean()


def _clip() -> Made:
    import transformers

    text = {name: value for name, value in _WIDTHS.items() if name != "pad_token_id"}
    vision = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 128,
              "image_size": 32, "patch_size": 4}  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=32)
    sample = {"input_ids": _tokens(), "pixel_values": torch.randn(ROWS, 3, 32, 32), "return_loss": True}
    return transformers.CLIPModel(config), sample, lambda out: out.loss


def _speech() -> Any:
    return {"input_features": torch.randn(4, 16, 128), "labels": torch.randint(3, WORDS, (4, 16))}


MODELS: dict[str, Callable[[], Made]] = {
    "nanoGPT": _nano(_NanoGPT),
    "nanoGPT with autocast inside": _nano(_Autocast),
    "torch TransformerEncoder": _torch_encoder,
    "torch Transformer": _torch_transformer,
    "torch LSTM layers": lambda: (_Recurrent(), _tokens(), None),
    "GPT2": _decoder("GPT2", n_embd=WIDTH, n_layer=LAYERS, n_head=4, n_positions=LENGTH),
    "GPTNeo": _decoder("GPTNeo", attention_types=[[["global", "local"], LAYERS // 2]], num_layers=LAYERS, num_heads=4),
    "GPTNeoX": _decoder("GPTNeoX"),
    "GPTJ": _decoder("GPTJ", n_embd=WIDTH, n_layer=LAYERS, n_head=4, n_positions=LENGTH, rotary_dim=8),
    "GPTBigCode": _decoder("GPTBigCode", n_embd=WIDTH, n_layer=LAYERS, n_head=4, n_positions=LENGTH),
    "Llama": _decoder("Llama", num_key_value_heads=2),
    "Mistral": _decoder("Mistral", num_key_value_heads=2, sliding_window=16),
    "Mixtral": _decoder("Mixtral", num_key_value_heads=2, num_local_experts=4),
    "Qwen2": _decoder("Qwen2", num_key_value_heads=2),
    "Qwen3": _decoder("Qwen3", num_key_value_heads=2, head_dim=16),
    "Qwen2Moe": _decoder("Qwen2Moe", num_key_value_heads=2, num_experts=4, moe_intermediate_size=64,
                         shared_expert_intermediate_size=64),
    "Gemma": _decoder("Gemma", num_key_value_heads=2, head_dim=16),
    "Gemma2": _decoder("Gemma2", num_key_value_heads=2, head_dim=16, sliding_window=16),
    "Phi": _decoder("Phi"),
    "Phi3": _decoder("Phi3"),
    "Falcon": _decoder("Falcon"),
    "OPT": _decoder("OPT", ffn_dim=128, word_embed_proj_dim=WIDTH),
    "Bloom": _decoder("Bloom", n_layer=LAYERS, n_head=4),
    "StableLm": _decoder("StableLm", num_key_value_heads=4),
    "Starcoder2": _decoder("Starcoder2", num_key_value_heads=2),
    "Cohere": _decoder("Cohere"),
    "Olmo": _decoder("Olmo"),
    "Granite": _decoder("Granite"),
    "Mamba": _decoder("Mamba", state_size=8),
    "Mamba2": _decoder("Mamba2", state_size=8, num_heads=8, head_dim=WIDTH // 4, n_groups=1, chunk_size=16),
    "BERT": _encoder("Bert"),
    "RoBERTa": _encoder("Roberta", max_position_embeddings=LENGTH + 2),
    "DistilBERT": _encoder("DistilBert", dim=WIDTH, n_layers=LAYERS, n_heads=4, hidden_dim=128),
    "ALBERT": _encoder("Albert", embedding_size=32),
    "ELECTRA": _encoder("Electra", embedding_size=32),
    "DeBERTa": _encoder("DebertaV2", relative_attention=True, position_buckets=16, pos_att_type=["p2c", "c2p"]),
    "ModernBERT": _encoder("ModernBert", local_attention=16),
    "T5": _translator("T5", num_layers=4, num_decoder_layers=4, d_kv=16, num_heads=4, d_ff=128),
    "BART": _translator("Bart"),
    "Pegasus": _translator("Pegasus"),
    "Whisper": _made("WhisperConfig", "WhisperForConditionalGeneration", _speech, vocab_size=WORDS, num_mel_bins=16,
                     d_model=WIDTH, encoder_layers=4, decoder_layers=4, encoder_attention_heads=4,
                     decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_source_positions=64,
                     max_target_positions=64, pad_token_id=0, decoder_start_token_id=1, bos_token_id=1,
                     eos_token_id=2),
    "CLIP": _clip,
    "ViT": _vit("ViT"),
    "Dinov2 with registers": _vit("Dinov2WithRegisters"),
    "PVT": _image("PvtV2", image_size=32, hidden_sizes=[16, 32, 32, 64], depths=[2, 2, 2, 2],
                  num_attention_heads=[1, 2, 2, 4], num_labels=7),
    "BEiT": _vit("Beit"),
    "DINOv2": _vit("Dinov2"),
    "Swin": _image("Swin", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2, 2], num_heads=[2, 2, 4],
                   window_size=4, num_labels=7),
    "ConvNeXt": _image("ConvNext", hidden_sizes=[16, 32, 64], depths=[2, 4, 2], num_stages=3, patch_size=2,
                       num_labels=7),
    "ResNet": _image("ResNet", embedding_size=16, hidden_sizes=[16, 32, 64], depths=[3, 4, 3], num_labels=7),
    "RegNet": _image("RegNet", embedding_size=16, hidden_sizes=[16, 32, 64], depths=[3, 4, 3], groups_width=8,
                     num_labels=7),
    "EfficientNet": _image("EfficientNet", image_size=32, width_coefficient=0.5, depth_coefficient=1.0, num_labels=7,
                           hidden_dim=640),
    "MobileNetV2": _image("MobileNetV2", image_size=32, depth_multiplier=0.5, num_labels=7),
    "SegFormer": _image("Segformer", depths=[2, 2, 2, 2], hidden_sizes=[16, 16, 32, 32], num_labels=7,
                        decoder_hidden_size=32),
    "PoolFormer": _image("PoolFormer", depths=[2, 2, 2, 2], hidden_sizes=[16, 16, 32, 32], num_labels=7),
    "diffusers U-Net": _diffusers_unet,
}  # fmt: skip


def check_model(name: str) -> dict[str, Any]:
    """Fit a model to 60 % of its plain peak, or to the least budget named, and compare a step with the plain one."""
    torch.manual_seed(0)
    try:
        model, sample, loss = MODELS[name]()
        plain = copy.deepcopy(model.train())
        full, step_seconds = allocator_peak(plain, sample, loss), _seconds(copy.deepcopy(plain), sample, loss)
    except Exception as error:  # noqa: BLE001  the version that is installed has it otherwise: told, and left out
        return {"model": name, "missing": str(error)[:200]}
    found: dict[str, Any] = {"model": name, "plain_bytes": full, "step_seconds": step_seconds, "failure": ""}
    started = time.process_time()
    try:
        try:
            module = memory.fit(model, sample, budget=int(SHARE * full), loss=loss)
        except InfeasibleBudget as error:
            # Truthful: what is named as the least is enough.
            started = time.process_time()
            module = memory.fit(model, sample, budget=error.minimal_bytes, loss=loss)
    except Exception as error:  # noqa: BLE001  whatever it is, the model is not accepted
        return found | {"failure": f"{type(error).__name__}: {error}"[:300]}
    seconds = time.process_time() - started
    plan = module.plan
    peak = allocator_peak(module, sample, loss)
    return found | {
        "stages": len(plan.chain.stages),
        "budget_share": plan.budget_bytes / full,
        "peak_share": peak / full,
        "kept": peak <= plan.budget_bytes,
        "forecast_over_peak": plan.peak_bytes / peak,
        "reruns": plan.solver != "none",
        "equal": _equal(_step(plain, sample, loss), _step(module, sample, loss)),
        "fit_in_steps": seconds / step_seconds,
        "foreseen_overhead": plan.overhead,
    }


def _seconds(model: nn.Module, sample: Any, loss: Any) -> float:
    found = []
    for _ in range(3):
        started = time.process_time()
        loss_of(call_model(model, sample), loss).backward()
        found.append(time.process_time() - started)
        model.zero_grad()
    return min(found)


def _step(model: nn.Module, sample: Any, loss: Any) -> list[torch.Tensor | None]:
    """Return the result, gradients, buffers and random numbers of two steps."""
    found: list[torch.Tensor | None] = []
    for seed in range(2):
        torch.manual_seed(seed)
        model.zero_grad()
        out = call_model(model, sample)
        loss_of(out, loss).backward()
        found += [each.detach().clone() for each in tensors_of(out)]
        found += [None if each.grad is None else each.grad.clone() for each in model.parameters()]
    return [*found, *(each.clone() for each in model.buffers()), torch.rand(3)]


def _equal(one: Sequence[torch.Tensor | None], other: Sequence[torch.Tensor | None]) -> bool:
    return len(one) == len(other) and all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(one, other, strict=True)
    )


def _checked(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        found = check_model(name)
        progress(f"models: {found}")
        yield found


def main() -> None:
    """Check the models that are asked for, print them, and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = list(_checked(arguments.models))
    done = [row for row in rows if "missing" not in row]
    taken = [row for row in done if not row["failure"]]
    header = ("model", "stages", "budget / plain peak", "foreseen overhead", "fit in plain steps", "equal, kept")
    lines = [
        (row["model"], str(row["stages"]), f"{row['budget_share']:.2f}", f"{row['foreseen_overhead']:.1%}",
         f"{row['fit_in_steps']:.1f}", f"{row['equal']}, {row['kept']}")
        for row in taken
    ]  # fmt: skip
    print(table(header, lines))
    for row in rows:
        if row.get("failure") or "missing" in row:
            print(f"{row['model']}: {row.get('failure') or row['missing']}")
    summary = {
        "models": len(done),
        "accepted": len(taken),
        "within_60_percent": sum(row["budget_share"] <= SHARE for row in taken),
        "equal_to_the_bit": sum(row["equal"] for row in taken),
        "budgets_kept": sum(row["kept"] for row in taken),
        "fit_in_steps_median": statistics.median([row["fit_in_steps"] for row in taken] or [0.0]),
        "fit_in_steps_worst": max((row["fit_in_steps"] for row in taken), default=None),
        "missing": [row["model"] for row in rows if "missing" in row],
    }
    finish({"benchmark": "memory models", "environment": environment(), "summary": summary, "rows": rows}, arguments)


if __name__ == "__main__":
    main()
