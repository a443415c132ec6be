"""A model's profile from the config.json of a Hugging Face model: no weights.

Decoders of equal blocks are described from their numbers, without torch and transformers. Of all others the module is
made on the meta device, as the installed transformers has it, and traced.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from trainwright.errors import InputError, MissingExtra
from trainwright.files import read_json
from trainwright.model.describe.transformer import describe_transformer
from trainwright.model.profile import Profile

__all__ = ["describe_config", "is_config", "trace_config"]

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
    "dense_layers": ("first_k_dense_replace",),
    "shared_feedforward": ("shared_expert_intermediate_size",),
    "latent_size": ("kv_lora_rank",),
    "query_latent_size": ("q_lora_rank",),
    "rotary_size": ("qk_rope_head_dim",),
    "value_size": ("v_head_dim",),
}
"""Words of `describe_transformer`, and the keys that families use for them, the first that is there."""
_NEEDED = ("hidden", "layers", "heads", "vocabulary")
_PLAIN = frozenset({"gpt_neox", "gptj", "bloom", "phi", "starcoder2"})
"""Families whose feed-forward part has no gate, and whose layers have biases."""
_GATED_NAMES = """
llama mistral gemma gemma2 gemma3_text qwen2 qwen3 qwen2_moe qwen3_moe mixtral deepseek_v2 deepseek_v3 phi3 cohere
cohere2 olmo olmo2 olmo3 olmoe granite granitemoe stablelm glm glm4 glm4_moe smollm3 gpt_oss exaone4 ernie4_5 phimoe
seed_oss minimax_m2 kimi_k2
"""
_GATED = frozenset(_GATED_NAMES.split())
_EQUAL_BLOCKS: Mapping[str, object] = {"mlp_only_layers": [], "decoder_sparse_step": 1, "moe_layer_freq": 1}
"""What a configuration says, or leaves out, of a model whose blocks have experts from some layer on."""
_SCANS = frozenset({"MambaMixer", "FalconMambaMixer", "JambaMambaMixer", "ZambaMambaMixer", "RwkvSelfAttention"})
"""Modules whose work is a loop over the positions, several operations each."""
_MOST_SCANNED = 128
_OTHERWISE = "allowed: a family of tokens or images that it knows, or the model, MODULE:FUNCTION with --sample"


def is_config(content: Any) -> bool:
    """Return whether a JSON file's content is a model's configuration."""
    return isinstance(content, Mapping) and ("model_type" in content or "architectures" in content)


def describe_config(path: Path | str, *, sequence: int | None = None, precision: str = "amp-bf16") -> Profile | None:
    """Return the profile of one sequence of the decoder that a config.json describes, None of a model to be traced.

    `sequence` is by default the longest that the configuration allows. Raises `InputError` for another file, and for a
    configuration in which a number is missing.
    """
    content = _read_config(path)
    family = str(content.get("model_type", ""))
    alike = all(content.get(key) in (None, usual) for key, usual in _EQUAL_BLOCKS.items())
    if family not in _PLAIN | _GATED or not alike:
        return None
    shape = {word: int(content[key]) for word, keys in _NAMES.items() for key in keys if content.get(key) is not None}
    if missing := [word for word in _NEEDED if word not in shape]:
        raise InputError(f"{path}: {_NAMES[missing[0]][0]} is missing; allowed: a config.json of a decoder")
    shape.setdefault("head_size", shape["hidden"] // shape["heads"])
    if shape.get("experts"):
        inner = int(content.get("moe_intermediate_size") or shape["feedforward"])
        shape |= {"dense_feedforward": shape["feedforward"], "feedforward": inner}
        shape.setdefault("shared_feedforward", inner * int(content.get("n_shared_experts") or 0))
    if shape.get("latent_size"):
        # The head of a query has a part that carries the position beside the one that does not.
        shape |= {"head_size": int(content["qk_nope_head_dim"]) + shape["rotary_size"], "kv_heads": shape["heads"]}
    shape["sequence"] = sequence or shape.get("sequence", 2048)
    return describe_transformer(
        **shape,
        gated=family in _GATED,
        biases=family in _PLAIN,
        positions=False,
        dropout=False,
        fused_attention=True,
        tied=bool(content.get("tie_word_embeddings", True)),
        precision=precision,
        name=str(content.get("_name_or_path") or family),
    )


def trace_config(path: Path | str, *, sequence: int | None = None, **options: Any) -> Profile:
    """Return the traced profile of the model that the installed transformers makes of a config.json, on one sample.

    The sample is a sequence of tokens (to a decoder as well, where an encoder has its own) or an image; `options` are
    those of `Profile.trace`. Raises `InputError` for a family that transformers does not know, and for a model that
    takes neither.
    """
    family = str(_read_config(path).get("model_type", ""))
    with MissingExtra.instead_of_import_error("a model made from its configuration", "transformers", "transformers"):
        import torch
        import transformers
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            config = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
            config.get_text_config().use_cache = False
            module = _make_module(transformers, config)
    except Exception as error:
        said = shorten(str(error), 160, placeholder="...")
        raise InputError(
            f"{path}: model_type: got {family!r}, of which transformers {transformers.__version__} makes no model "
            f"({said}); {_OTHERWISE}"
        ) from error
    batch = _make_sample(path, module, config, sequence)
    profile = Profile.trace(module, batch, loss=_loss_of, name=family, **options)
    parts = [part for part in ("vision", "audio") if getattr(config, f"{part}_config", None) is not None]
    if "input_ids" in batch and parts:
        # Tokens alone leave these parts at rest.
        profile = replace(profile, uncounted=(*profile.uncounted, *(f"the {part} encoder" for part in parts)))
    return profile


def _make_module(transformers: Any, config: Any) -> Any:
    """Return the class that the configuration names, else the family's decoder, encoder-decoder or base model."""
    named = [getattr(transformers, str(name), None) for name in config.architectures or ()]
    for known in filter(None, named):
        return known._from_config(config)  # noqa: SLF001 -- classes have no public way from a configuration alone
    for task in ("ForCausalLM", "ForSeq2SeqLM", "ForMaskedLM", "ForImageTextToText", ""):
        maker = getattr(transformers, f"AutoModel{task}")
        if type(config) in maker._model_mapping:  # noqa: SLF001 -- as above
            return maker.from_config(config)
    raise ValueError("no architectures")


def _make_sample(path: Path | str, module: Any, config: Any, sequence: int | None) -> dict[str, Any]:
    """Return one sample for the model's main input, on the meta device."""
    import torch

    main = str(module.main_input_name)
    longest = getattr(config.get_text_config(), "max_position_embeddings", None) or 2048
    if main == "input_ids":
        length = sequence or int(longest)
        scan = next((name for name in (type(part).__name__ for part in module.modules()) if name in _SCANS), "")
        if scan and length > _MOST_SCANNED:
            raise InputError(
                f"{path}: --sequence: got {length} for {scan}, which is traced position by position; allowed: 1 "
                f"to {_MOST_SCANNED}, and the batch in proportion larger"
            )
        tokens = torch.zeros(1, length, dtype=torch.long, device="meta")
        return {main: tokens} | ({"decoder_input_ids": tokens} if config.is_encoder_decoder else {})
    if main == "pixel_values" and getattr(config, "image_size", None):
        sides = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
        return {main: torch.zeros(1, getattr(config, "num_channels", 3), *sides, device="meta")}
    raise InputError(f"{path}: the model takes {main}; {_OTHERWISE}")


def _loss_of(model: Any, batch: Mapping[str, Any]) -> Any:
    """Return the cross-entropy of logits of every position, of other models the mean of their first output."""
    from torch.nn import functional

    out = next(iter(model(**batch).values()))
    tokens = batch.get("decoder_input_ids", batch.get("input_ids"))
    if tokens is None or out.dim() != 3 or out.shape[:2] != tokens.shape:
        return out.float().mean()
    return functional.cross_entropy(out.float().flatten(0, 1), tokens.flatten())


def _read_config(path: Path | str) -> dict[str, Any]:
    content = read_json(path, "configuration", allowed="a config.json of a Hugging Face model")
    if not is_config(content):
        raise InputError(f"{path}: got no model_type; allowed: a config.json of a Hugging Face model")
    return dict(content)
