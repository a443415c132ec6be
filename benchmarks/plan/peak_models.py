"""Models whose peaks are predicted: the examples' zoo, families of transformers made small, and networks in a line."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from models import alexnet, cosmoflow, densenet, gpt, inception, mlp, resnet, unet, vgg, vit

__all__ = ["MODELS", "Model"]

Model = tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, ...]]]

ZOO: dict[str, Model] = {
    "alexnet": (lambda: alexnet.alexnet(10, hidden=256), lambda n: alexnet.sample(n, 96)),
    "cosmoflow": (lambda: cosmoflow.cosmoflow(16, width=8), lambda n: cosmoflow.sample(n, 16)),
    "densenet": (densenet.densenet_small, lambda n: densenet.sample(n, 64)),
    "gpt": (lambda: gpt.gpt("tiny", vocabulary=997, length=64), lambda n: gpt.sample(n, 64, 997)),
    "inception": (lambda: inception.inception(10, width=4), lambda n: inception.sample(n, 64)),
    "mlp": (lambda: mlp.mlp(256, 512, 4, dropout=0.1), lambda n: mlp.sample(8 * n, 256)),
    "resnet18": (lambda: resnet.resnet18(10, width=16), lambda n: resnet.sample(n, 64)),
    "resnet50": (lambda: resnet.resnet50(10, width=16), lambda n: resnet.sample(n, 64)),
    "unet": (lambda: unet.unet(width=8, levels=2), lambda n: unet.sample(n, 64)),
    "vgg16": (lambda: vgg.vgg16(10, width=8, hidden=128), lambda n: vgg.sample(n, 64)),
    "vit": (lambda: vit.vit_tiny(32), lambda n: vit.sample(n, 32)),
}


def _tokens(length: int, vocabulary: int, n: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, vocabulary, (n, length)),)


def _images(size: int, n: int) -> tuple[Tensor, ...]:
    return (torch.randn(n, 3, size, size),)


class _First(nn.Module):
    """A model of transformers by what it returns first."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the first output: logits, or the last hidden state."""
        found: Tensor = self.model(*inputs)[0]
        return found


_DECODER: dict[str, Any] = {
    "vocab_size": 997, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "use_cache": False,
}  # fmt: skip
_ENCODER = {name: _DECODER[name] for name in list(_DECODER)[:5]}
_VISION: dict[str, Any] = {**{name: _DECODER[name] for name in list(_DECODER)[1:5]}, "image_size": 32, "patch_size": 4}
_FAMILIES: dict[str, tuple[str, dict[str, Any], Callable[[int], tuple[Tensor, ...]]]] = {
    **{
        name: (f"{name}ForCausalLM", _DECODER, partial(_tokens, 64, 997))
        for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Olmo", "StableLm", "Starcoder2", "Granite")
    },
    "GPT2": ("GPT2LMHeadModel", {"vocab_size": 997, "n_embd": 128, "n_layer": 2, "n_head": 4, "use_cache": False},
             partial(_tokens, 64, 997)),
    "GPTNeoX": ("GPTNeoXForCausalLM", {**_ENCODER, "use_cache": False}, partial(_tokens, 64, 997)),
    "Bert": ("BertModel", _ENCODER, partial(_tokens, 64, 997)),
    "Roberta": ("RobertaModel", _ENCODER, partial(_tokens, 64, 997)),
    "Electra": ("ElectraModel", _ENCODER, partial(_tokens, 64, 997)),
    "ViT": ("ViTModel", _VISION, partial(_images, 32)),
    "Beit": ("BeitModel", _VISION, partial(_images, 32)),
    "DeiT": ("DeiTModel", _VISION, partial(_images, 32)),
    "ConvNext": ("ConvNextModel", {"depths": [1, 1, 2, 1], "hidden_sizes": [16, 32, 64, 128]}, partial(_images, 64)),
    "ResNet": ("ResNetModel", {"embedding_size": 16, "hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 1, 1]},
               partial(_images, 64)),
    "RegNet": ("RegNetModel", {"embedding_size": 16, "hidden_sizes": [32, 64, 96, 128], "depths": [1, 1, 1, 1],
                               "groups_width": 16}, partial(_images, 64)),
    "MobileNetV2": ("MobileNetV2Model", {"depth_multiplier": 0.35}, partial(_images, 64)),
    "Segformer": ("SegformerModel", {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1]}, partial(_images, 64)),
    "Swin": ("SwinModel", {"image_size": 64, "patch_size": 4, "embed_dim": 24, "depths": [1, 1], "num_heads": [2, 4],
                           "window_size": 4}, partial(_images, 64)),
}  # fmt: skip


def _make_family(name: str) -> nn.Module:
    import transformers

    kind, settings, _ = _FAMILIES[name]
    return _First(getattr(transformers, kind)(getattr(transformers, f"{name}Config")(**settings)))


class _Recurrent(nn.Module):
    """Recurrent layers over vectors."""

    def __init__(self, cells: Callable[..., nn.RNNBase], inputs: int, width: int, **settings: Any) -> None:
        super().__init__()
        self.cells: nn.RNNBase = cells(inputs, width, batch_first=True, **settings)
        self.head = nn.Linear(width * (1 + settings.get("bidirectional", False)), 10)

    def forward(self, series: Tensor) -> Tensor:
        """Return a class a step."""
        found: Tensor = self.head(self.cells(series)[0])
        return found


def _series(length: int, width: int, n: int) -> tuple[Tensor, ...]:
    return (torch.randn(n, length, width),)


def _line(*parts: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*parts)


LINES: dict[str, Model] = {
    "volumes": (
        _line(nn.Conv3d(1, 8, 3, 2, 1), nn.PReLU(), nn.ConvTranspose3d(8, 2, 3, 2, 1, output_padding=1), nn.PReLU(),
              nn.Conv3d(2, 2, 3, padding=1)),
        lambda n: (torch.randn(n, 1, 16, 16, 16),),
    ),
    "speech": (
        _line(nn.Conv1d(1, 32, 25, 4), nn.GELU(), nn.Conv1d(32, 64, 9, 2), nn.GroupNorm(8, 64), nn.GELU(),
              nn.Conv1d(64, 64, 31, groups=64, padding=15), nn.Conv1d(64, 10, 1)),
        lambda n: (torch.randn(n, 1, 2048),),
    ),
    "separable": (
        _line(nn.Conv2d(3, 24, 3, 2, 1), nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.BatchNorm2d(24), nn.ReLU6(),
              nn.Conv2d(24, 40, 1), nn.Conv2d(40, 40, 5, 2, 2, groups=40), nn.BatchNorm2d(40), nn.ReLU6(), nn.Flatten(),
              nn.Linear(40 * 16 * 16, 10)),
        lambda n: (torch.randn(n, 3, 64, 64),),
    ),
    "volumes with norms": (
        _line(nn.Conv3d(1, 12, 3, padding=1), nn.InstanceNorm3d(12), nn.LeakyReLU(), nn.Conv3d(12, 24, 3, 2, 1),
              nn.LeakyReLU(), nn.ConvTranspose3d(24, 12, 2, 2), nn.LeakyReLU(), nn.Conv3d(12, 3, 1)),
        lambda n: (torch.randn(n // 2, 1, 24, 24, 24),),
    ),
    "volumes with residuals": (
        _line(nn.Conv3d(4, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv3d(16, 32, 3, 2, 1),
              nn.GroupNorm(4, 32), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv3d(32, 16, 3, padding=1), nn.ReLU(),
              nn.Conv3d(16, 4, 1)),
        lambda n: (torch.randn(n // 4, 4, 24, 24, 24),),
    ),
    "translated images": (
        _line(nn.ReflectionPad2d(3), nn.Conv2d(3, 24, 7), nn.InstanceNorm2d(24), nn.ReLU(), nn.Conv2d(24, 48, 3, 2, 1),
              nn.InstanceNorm2d(48), nn.ReLU(), nn.ConvTranspose2d(48, 24, 3, 2, 1, 1), nn.InstanceNorm2d(24),
              nn.ReLU(), nn.Conv2d(24, 3, 7, padding=3), nn.Tanh()),
        partial(_images, 48),
    ),
    "volumes to classes": (
        _line(nn.Conv3d(2, 20, 3, 2, 1), nn.BatchNorm3d(20), nn.ReLU(), nn.Conv3d(20, 40, 3, 2, 1), nn.BatchNorm3d(40),
              nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(40, 3)),
        lambda n: (torch.randn(n, 2, 24, 24, 24),),
    ),
    "waves": (
        _line(nn.Conv1d(1, 64, 10, 5), nn.GELU(), nn.Conv1d(64, 64, 3, 2), nn.GELU(), nn.Conv1d(64, 96, 3, 2),
              nn.GELU(), nn.Conv1d(96, 96, 2, 2)),
        lambda n: (torch.randn(n, 1, 8000),),
    ),
    "series": (
        _line(nn.Conv1d(40, 64, 5, padding=4, dilation=2), nn.BatchNorm1d(64), nn.ReLU(),
              nn.Conv1d(64, 64, 15, groups=64, padding=7), nn.Conv1d(64, 128, 1), nn.GLU(1), nn.Conv1d(64, 30, 1)),
        lambda n: (torch.randn(n, 40, 300),),
    ),
    "separable with strides": (
        _line(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1, groups=32), nn.BatchNorm2d(32),
              nn.Conv2d(32, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 2, 1, groups=64), nn.BatchNorm2d(64),
              nn.Conv2d(64, 128, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
        partial(_images, 64),
    ),
    "separable of 7 x 7": (
        _line(nn.Conv2d(3, 40, 4, 4), nn.Conv2d(40, 40, 7, 1, 3, groups=40), nn.GELU(), nn.Conv2d(40, 160, 1),
              nn.GELU(), nn.Conv2d(160, 40, 1), nn.Conv2d(40, 20, 1)),
        partial(_images, 96),
    ),
    "recurrent": (partial(_Recurrent, nn.LSTM, 32, 64, num_layers=2), partial(_series, 40, 32)),
    **{
        f"{name} {words}": (partial(_Recurrent, cells, inputs, width, **settings),
                                      partial(_series, length, inputs))
        for name, cells in (("LSTM", nn.LSTM), ("GRU", nn.GRU), ("RNN", nn.RNN))
        for words, inputs, width, length, settings in (
            ("wide", 128, 256, 100, {}),
            ("both ways", 64, 128, 60, {"num_layers": 2, "bidirectional": True}),
        )
    },
}  # fmt: skip

MODELS: dict[str, Model] = {
    **ZOO,
    **{name: (partial(_make_family, name), sample) for name, (_, _, sample) in _FAMILIES.items()},
    **LINES,
}
