"""Models of each kind, small."""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions around which the input goes."""

    def __init__(self, channels, *, norm=False):
        super().__init__()
        self.one = nn.Conv2d(channels, channels, 3, padding=1, bias=not norm)
        self.norm = nn.BatchNorm2d(channels) if norm else nn.Identity()
        self.two = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.two(torch.relu(self.norm(self.one(x)))))


def mlp():
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))


def convolutions(*, norm=False):
    """Strides, padding, dilation, a kernel of even size, pooling, a residual block, and a part that is not divided."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2, padding=2),
        nn.BatchNorm2d(8) if norm else nn.Identity(),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
        Residual(8, norm=norm),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2),
        nn.AvgPool2d(2, stride=1, padding=1),
        nn.Conv2d(8, 12, 4, padding=(1, 2), bias=False),
        nn.Conv2d(12, 8, 3, dilation=2, padding="same"),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 5),
    )


def volumes():
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(4, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(4, 4),
    )


class UNet(nn.Module):
    """Down, up again, and the skipped tensor beside: its output is an image."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.last = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x):
        skipped = torch.relu(self.first(x))
        low = torch.relu(self.down(nn.functional.max_pool2d(skipped, 2)))
        return self.last(torch.cat([self.up(low), skipped], 1))


class Attention(nn.Module):
    """Causal attention; queries, keys and values from one layer or three, taken apart in one of several ways."""

    def __init__(self, width, heads, how):
        super().__init__()
        self.how, self.heads = how, heads
        if how == "separate":
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        elif how == "mixed":  # names that nobody else uses
            self.mix, self.end = nn.Linear(width, 3 * width), nn.Linear(width, width)
        elif how == "by heads":
            self.query_key_value, self.dense = nn.Linear(width, 3 * width), nn.Linear(width, width)
        elif how == "transposed":
            self.c_attn, self.c_proj = Conv1D(3 * width, width), Conv1D(width, width)
        else:
            self.qkv = nn.Linear(width, 3 * width)
        if how in {"separate", "chunk", "split", "view"}:
            self.out_proj = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        if self.how == "separate":
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        elif self.how == "mixed":
            q, k, v = self.mix(x).chunk(3, dim=-1)
        elif self.how == "by heads":
            taken = self.query_key_value(x).view(batch, length, self.heads, 3, -1)
            q, k, v = (taken[..., place, :].flatten(2) for place in range(3))
        elif self.how == "transposed":
            q, k, v = self.c_attn(x).split(width, dim=2)
        elif self.how == "chunk":
            q, k, v = self.qkv(x).chunk(3, dim=-1)
        elif self.how == "split":
            q, k, v = torch.split(self.qkv(x), width, dim=-1)
        if self.how == "view":
            taken = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
            q, k, v = taken.permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = (each.view(batch, length, self.heads, -1).transpose(1, 2) for each in (q, k, v))
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        joined = found.transpose(1, 2).reshape(batch, length, width)
        last = {"mixed": "end", "by heads": "dense", "transposed": "c_proj"}.get(self.how, "out_proj")
        return getattr(self, last)(joined)


class Conv1D(nn.Module):
    """Linear, with a weight of (inputs, outputs), as GPT-2 of transformers has it."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf) / 4), nn.Parameter(torch.randn(nf) / 4)

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


class Scores(nn.Module):
    """Attention by hand, with a bias of positions that is learned for each head, and added to the input in place."""

    def __init__(self, width, heads):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.bias, self.heads = nn.Parameter(torch.randn(heads, 8, 8)), heads

    def forward(self, x):
        q, k, v = (
            each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        scores = (q @ k.mT + self.bias).softmax(-1)
        found = x.clone()
        found.add_((scores @ v).transpose(1, 2).flatten(2))
        return torch.tanh(found)


class Apart(nn.Module):
    """A block of modules that hold one layer each, as BERT's: no module has both the columns and their row."""

    def __init__(self, width, heads, _how):
        super().__init__()
        self.scores, self.after = Scores(width, heads), _of_dense(nn.Linear(width, width))
        self.wide, self.narrow = _of_dense(nn.Linear(width, 4 * width)), _of_dense(nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        x = self.norm(x + self.after(self.scores(x)))
        return x + self.narrow(torch.tanh(self.wide(x)))


def _of_dense(layer):
    return nn.Sequential(OrderedDict(dense=layer))


class Block(nn.Module):
    def __init__(self, width, heads, how):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, how)
        if how == "separate":
            self.mlp = Gated(width)
        else:
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down_proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Transformer(nn.Module):
    """What goes in and comes out are vectors: (batch, length, 6)."""

    def __init__(self, how="separate", depth=2):
        super().__init__()
        self.embedding = nn.Linear(6, 16)
        self.blocks = nn.ModuleList([(Apart if how == "apart" else Block)(16, 4, how) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 6)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Tied(nn.Module):
    """The first layer's weights are the last one's; both are kept, and a mode is asked for outside any layer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(6, 16)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)))
        self.last.weight = self.first.weight

    def forward(self, x):
        x = self.layers(self.first(x))
        return nn.functional.dropout(x, 0.0 if self.training else 1.0) @ self.last.weight + self.last.bias[:6]


class Misplaced(nn.Module):
    """What ends the forward is made before the blocks; these take keywords and return pairs, and a scale skips them."""

    def __init__(self, asks=False):
        super().__init__()
        self.norm, self.head, self.scale = nn.LayerNorm(16), nn.Linear(16, 6), nn.Linear(6, 16)
        self.embedding, self.asks = nn.Linear(6, 16), asks
        self.blocks = nn.ModuleList([_Pair() for _ in range(4)])

    def forward(self, x):
        scale, hidden = torch.sigmoid(self.scale(x)), self.embedding(x)
        for block in self.blocks:
            if self.asks and hidden.mean() > 100:
                return hidden
            hidden, _ = block(hidden, scale=scale)
        return self.head(self.norm(hidden * scale))


class _Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x, *, scale):
        return x + torch.tanh(self.inner(x)) * scale, None


def normed_at_the_end():
    """Return layers with a norm of rows, and one of what is left of all of them."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(3),
        nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 5),
    )  # fmt: skip


def fine_tuned(how):
    """Return a transformer whose embedding is not trained: what enters its blocks wants no gradient."""
    model = Transformer(how)
    model.embedding.requires_grad_(False)
    return model


def chain():
    return nn.Sequential(
        nn.Linear(6, 16), Block(16, 4, "chunk"), Block(16, 4, "chunk"), nn.LayerNorm(16), nn.Linear(16, 6)
    )


class Encoder(nn.Module):
    """Torch's own encoder layers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Linear(6, 16)
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)]
        )

    def forward(self, x):
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x


class StackedExperts(nn.Module):
    """Experts as transformers calls them."""

    def __init__(self, count, width):
        super().__init__()
        self.num_experts = count
        self.up = nn.Parameter(torch.randn(count, 2 * width, width) / 4)
        self.up_bias = nn.Parameter(torch.randn(count, 2 * width) / 4)
        self.down = nn.Parameter(torch.randn(count, width, 2 * width) / 4)
        self.act = nn.GELU()

    def forward(self, tokens, visited, weights):
        found = torch.zeros_like(tokens)
        for expert in visited.unique().tolist():
            rows, choices = torch.where(visited == expert)
            inner = self.act(functional.linear(tokens[rows], self.up[expert], self.up_bias[expert]))
            made = functional.linear(inner, self.down[expert]) * weights[rows, choices, None]
            found = found.index_add(0, rows, made.to(found.dtype))
        return found


class Routed(nn.Module):
    """A block whose tokens visit two of four experts each; with `crowded` two that are on one rank."""

    def __init__(self, width, *, crowded=False):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, 4)
        self.experts = StackedExperts(4, width)
        if crowded:
            self.router.bias.data.copy_(torch.tensor([9.0, 9.0, 0.0, 0.0]))

    def forward(self, x):
        tokens = self.norm(x).flatten(0, -2)
        weights, visited = self.router(tokens).softmax(-1).topk(2)
        return x + self.experts(tokens, visited, weights).view_as(x)


class Mixture(nn.Module):
    """Blocks of experts."""

    def __init__(self, outputs=6, *, crowded=False):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, outputs)
        self.blocks = nn.ModuleList([Routed(8, crowded=crowded) for _ in range(2)])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)
