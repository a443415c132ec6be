"""A transformer's profile from the config.json of a Hugging Face decoder: no weights, no torch, no transformers.

Families with parts that `describe_transformer` has no words for (latent attention, layers without attention) are
refused: such a model is traced from its module.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright.errors import InputError
from trainwright.files import read_json
from trainwright.model.describe.transformer import describe_transformer
from trainwright.model.profile import Profile

__all__ = ["describe_config", "is_config"]

_NAMES = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocabulary": ("vocab_size",),
    "sequence": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "kv_heads": ("num_key_value_heads",),
    "head_size": ("head_dim",),
    "feedforward": ("intermediate_size", "n_inner", "ffn_dim"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token"),
}
"""Words of `describe_transformer`, and the keys that families use for them, the first that is there."""
_NEEDED = ("hidden", "layers", "heads", "vocabulary")
_PLAIN = frozenset(
    {"gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "falcon", "phi", "starcoder2", "gpt_bigcode"}
)
"""Families whose feed-forward part has no gate, and whose layers have biases."""
_LEARNT_POSITIONS = frozenset({"gpt2", "gpt_neo", "opt", "gpt_bigcode"})
_UNKNOWN = {
    "kv_lora_rank": "latent attention",
    "mamba_d_state": "state-space layers",
    "ssm_cfg": "state-space layers",
    "state_size": "state-space layers",
    "n_shared_experts": "shared experts",
    "is_encoder_decoder": "an encoder and a decoder",
}


def is_config(content: Any) -> bool:
    """Return whether a JSON file's content is a model's configuration."""
    return isinstance(content, Mapping) and ("model_type" in content or "architectures" in content)


def describe_config(path: Path | str, *, sequence: int | None = None, precision: str = "amp-bf16") -> Profile:
    """Return the profile of one sequence of the decoder that a config.json describes.

    `sequence` is by default the longest that the configuration allows. Raises `InputError` for another file, and for a
    model that has parts without a description here.
    """
    content = read_json(path, "configuration", allowed="a config.json of a Hugging Face model")
    if not is_config(content):
        raise InputError(f"{path}: got no model_type; allowed: a config.json of a Hugging Face model")
    # A model of several parts keeps its decoder's numbers in a table of their own.
    content = {**content, **(content.get("text_config") or {})}
    family = str(content.get("model_type", ""))
    for key, what in _UNKNOWN.items():
        if content.get(key):
            raise InputError(
                f"{path}: {key}: got {content[key]!r}: {what} cannot be described from a configuration; allowed: the "
                "model itself, MODULE:FUNCTION with --sample, which is traced"
            )
    shape = {word: int(content[key]) for word, keys in _NAMES.items() for key in keys if content.get(key) is not None}
    if missing := [word for word in _NEEDED if word not in shape]:
        raise InputError(f"{path}: {_NAMES[missing[0]][0]} is missing; allowed: a config.json of a decoder")
    if shape.get("experts"):
        shape["feedforward"] = int(content.get("moe_intermediate_size") or shape["feedforward"])
    shape["sequence"] = sequence or shape.get("sequence", 2048)
    return describe_transformer(
        **shape,
        gated=family not in _PLAIN,
        biases=family in _PLAIN,
        positions=family in _LEARNT_POSITIONS,
        dropout=False,
        fused_attention=True,
        tied=bool(content.get("tie_word_embeddings", True)),
        precision=precision,
        name=str(content.get("_name_or_path") or family),
    )
