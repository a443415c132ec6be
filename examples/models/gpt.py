"""A decoder-only transformer in the manner of GPT-2: norms before attention and feed-forward part, tied embeddings."""

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["GPT", "SIZES", "gpt", "gpt2", "next_token_loss", "sample"]

SIZES = {  # layers, heads, width
    "tiny": (2, 2, 64),
    "small": (12, 12, 768),
    "medium": (24, 16, 1024),
    "large": (36, 20, 1280),
    "xl": (48, 25, 1600),
}


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = batch, length, self.heads, width // self.heads
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.mix(x).chunk(3, dim=-1))
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """Attention and a feed-forward part four times as wide, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.feedforward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.feedforward(self.norm2(x)))


class GPT(nn.Module):
    """Token and position embeddings, equal layers, a norm, and a head that shares the token embedding."""

    def __init__(self, shape: tuple[int, int, int], vocabulary: int, length: int, dropout: float = 0.0) -> None:
        super().__init__()
        layers, heads, width = shape
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.layers(self.tokens(tokens) + self.positions(places))))


def gpt(size: str = "small", vocabulary: int = 50257, length: int = 1024, dropout: float = 0.0) -> GPT:
    return GPT(SIZES[size], vocabulary, length, dropout)


def gpt2() -> GPT:
    return gpt("small")


def next_token_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    (tokens,) = batch
    logits = model(tokens)[:, :-1]
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def sample(batch: int = 4, length: int = 1024, vocabulary: int = 50257) -> tuple[Tensor, ...]:
    return (torch.randint(vocabulary, (batch, length)),)
