"""A config.json of Hugging Face becomes a profile with the real model's parameters and operations, or one sentence."""

import copy
import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from trainwright.errors import InputError
from trainwright.model.describe.hugging_face import _make_module, describe_config, trace_config
from trainwright.model.trace.recording import record_step
from trainwright.model.trace.step import prepare_step

transformers = pytest.importorskip("transformers")

_DESCRIBED = """
llama mistral gemma gemma2 gemma3_text qwen2 qwen3 qwen2_moe qwen3_moe mixtral deepseek_v2 deepseek_v3 gptj phi phi3
starcoder2 cohere2 olmo2 glm4 glm4_moe gpt_oss
"""
SMALL = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1}
_LATENT = {
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "head_dim": 8, "num_key_value_heads": 4, "n_routed_experts": 8, "first_k_dense_replace": 1, **_EXPERTS,
}  # fmt: skip
_STATE_SPACE = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16}
TRACED = {
    "llama": {},
    "gpt2": {},
    "bloom": {},
    "falcon": {},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 8, **_EXPERTS},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "bamba": {**_STATE_SPACE, "attn_layer_indices": [1]},
    "falcon_h1": {**_STATE_SPACE, "mamba_d_ssm": 128},
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    "bert": {},
    "modernbert": {},
    "vit": {"image_size": 32, "patch_size": 8},
}


def saved(config, folder):
    config.save_pretrained(folder)
    return folder / "config.json"


def made(config):
    with torch.device("meta"):
        return _make_module(transformers, config)


@pytest.mark.parametrize("family", _DESCRIBED.split())
def test_parameters_of_described_families(family, tmp_path):
    """Of the family's own default configuration, most of them those of a published model."""
    config = transformers.AutoConfig.for_model(family)
    profile = describe_config(saved(config, tmp_path), sequence=512)
    assert profile.origin == "described"
    assert profile.parameters == pytest.approx(sum(each.numel() for each in made(config).parameters()), rel=1e-3)


@pytest.mark.parametrize(
    "family", [pytest.param(each, marks=[] if at % 3 == 0 else pytest.mark.slow) for at, each in enumerate(TRACED)]
)
def test_parameters_and_operations_of_traced_families(family, tmp_path):
    """To what torch counts of the model with its experts one after the other, its attention in products."""
    config = transformers.AutoConfig.for_model(family, **{**SMALL, **TRACED[family]})
    profile = trace_config(saved(config, tmp_path), sequence=32, precision="fp32")
    assert (profile.origin, profile.uncounted) == ("traced", ())
    torch.manual_seed(0)
    model = type(made(config))(copy.deepcopy(config))
    assert profile.parameters == sum(each.numel() for each in model.parameters())
    model.set_attn_implementation("eager")  # of the fused one for processors torch counts nothing
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")
    batch = {"input_ids": torch.randint(3, 512, (1, 32))}
    if family == "vit":
        batch = {"pixel_values": torch.randn(1, 3, 32, 32)}
    if config.is_encoder_decoder:
        batch["decoder_input_ids"] = batch["input_ids"]
    with FlopCounterMode(display=False) as counter:
        next(iter(model(**batch).values()))
    forward = sum(layer.forward_flops for layer in profile.layers)
    assert forward == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_a_part_that_tokens_do_not_reach_is_named(tmp_path):
    text = {**SMALL, "model_type": "llama"}
    vision = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
              "num_attention_heads": 2, "image_size": 16, "patch_size": 8}  # fmt: skip
    config = transformers.AutoConfig.for_model("llava", text_config=text, vision_config=vision, image_seq_length=4)
    profile = trace_config(saved(config, tmp_path), sequence=32)
    assert profile.uncounted == ("the vision encoder",)
    assert profile.parameters == sum(each.numel() for each in made(config).parameters())


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"model_type": "unheard_of"}, "model_type: got 'unheard_of', of which transformers"),
        ({"model_type": "mamba", "num_hidden_layers": 1}, "--sequence: got 512 for MambaMixer"),
        ({"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}, "takes input_features"),
        ({"model_type": "falcon", "num_attention_heads": 0}, "makes no model"),
        ({"hidden_size": 8}, "got no model_type"),
    ],
)
def test_refusals(content, sentence, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
        describe_config(path, sequence=512) or trace_config(path, sequence=512)


def test_blocks_that_differ_are_traced(tmp_path):
    config = transformers.AutoConfig.for_model("qwen3_moe", **SMALL, num_experts=4, mlp_only_layers=[1], **_EXPERTS)
    assert describe_config(saved(config, tmp_path)) is None


@pytest.mark.parametrize(("given", "heads"), [({}, 2), ({"position_ids": torch.arange(16).expand(3, 16)}, 4)])
def test_grouped_heads_are_repeated_only_under_a_mask(given, heads):
    """As in a real step: rows that the model numbers itself hold one sequence; numbers that are given may say other."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, use_cache=False))
    sample = {"input_ids": torch.ones(3, 16, dtype=torch.long), **given}
    step = prepare_step(model, sample, loss=lambda model, batch: model(**batch).logits.square().mean())
    keys = [
        each.arguments[1].shape
        for each in record_step(step, granule_bytes=64).operations
        if each.phase == "forward" and "attention" in str(each.func)
    ]
    assert [shape[1] for shape in keys] == [heads, heads]
