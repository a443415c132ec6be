"""A decoder-only transformer in the manner of Llama 3: RMS norms, rotary positions, grouped queries, SwiGLU."""

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["SIZES", "Llama", "llama", "next_token_loss", "sample"]

SIZES = {  # layers, heads, heads of keys, width, width of the feed-forward part
    "tiny": (2, 4, 2, 64, 192),
    "8b": (32, 32, 8, 4096, 14336),
    "70b": (80, 64, 8, 8192, 28672),
    "405b": (126, 128, 8, 16384, 53248),
}


def rotations(length: int, width: int, device: torch.device, base: float = 500_000.0) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, (length, width / 2) each."""
    frequencies = base ** (-torch.arange(0, width, 2, device=device) / width)
    angles = torch.outer(torch.arange(length, device=device), frequencies)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair of features (first half, second half) of (batch, heads, length, width) by its position's angle."""
    cosine, sine = (part.to(x.dtype) for part in turn)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class Attention(nn.Module):
    """Causal self-attention in which several heads share the keys and values of one."""

    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.size = heads, key_heads, width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_heads * self.size, bias=False)
        self.value = nn.Linear(width, key_heads * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, width = x.shape
        query = rotated(self.query(x).view(batch, length, self.heads, self.size).transpose(1, 2), turn)
        shape = batch, length, self.key_heads, self.size
        key = rotated(self.key(x).view(shape).transpose(1, 2), turn)
        value = self.value(x).view(shape).transpose(1, 2)
        key, value = (part.repeat_interleave(self.heads // self.key_heads, dim=1) for part in (key, value))
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    """SwiGLU: one projection gates another."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Attention and feed-forward part, each on the norm of its input and added to it."""

    def __init__(self, heads: int, key_heads: int, width: int, inner: int) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(width)
        self.attention = Attention(width, heads, key_heads)
        self.norm2 = nn.RMSNorm(width)
        self.feedforward = FeedForward(width, inner)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.norm1(x), turn)
        return x + self.feedforward(self.norm2(x))


class Llama(nn.Module):
    """Token embedding, equal layers, a norm, and a head of its own."""

    def __init__(self, shape: tuple[int, int, int, int, int], vocabulary: int) -> None:
        super().__init__()
        layers, heads, key_heads, width, inner = shape
        self.head_width = width // heads
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(heads, key_heads, width, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        turn = rotations(tokens.shape[1], self.head_width, tokens.device)
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, turn)
        return self.head(self.norm(x))


def llama(size: str = "8b", vocabulary: int = 128256) -> Llama:
    return Llama(SIZES[size], vocabulary)


def next_token_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Return the cross-entropy of each token given those before it; the batch has one more than the model reads."""
    (tokens,) = batch
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def sample(batch: int = 1, length: int = 8192, vocabulary: int = 128256) -> tuple[Tensor, ...]:
    return (torch.randint(vocabulary, (batch, length + 1)),)
