"""Networks as people write them, each with a batch of its input: what can be exported must load without trust."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

IMAGES, ROWS, STEPS = torch.randn(4, 3, 16, 16), torch.randn(4, 8), torch.randn(4, 6, 8)
TOKENS = torch.randint(0, 50, (4, 9))


class Calls(nn.Module):
    """A function of the module and the batch, with layers."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.function(self, x)


class Vision(nn.Module):
    def __init__(self):
        super().__init__()
        self.cut = nn.Conv2d(3, 8, 4, 4)
        block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu")
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.first, self.places = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 17, 8))

    def forward(self, x):
        parts = self.cut(x).flatten(2).transpose(1, 2)
        return self.blocks(torch.cat([self.first.expand(x.shape[0], -1, -1), parts], 1) + self.places)[:, 0]


def causal(self, x):
    rows, steps, _ = x.shape
    q, k, v = (one.view(rows, steps, 2, 4).transpose(1, 2) for one in self.inner(x).chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, -1)


def masked(self, x):
    q, k, v = self.inner(x).split(8, -1)
    allowed = torch.tril(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool))
    shares = (q @ k.transpose(-2, -1) / 8**0.5).masked_fill(~allowed, float("-inf")).softmax(-1)
    return (shares @ v).mean(1)


def pooled(self, x):
    words = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))[None]
    known = (x != 0).unsqueeze(-1).float()
    return (words * known).sum(1) / known.sum(1).clamp(min=1)


def residual(self, x):
    found = self.norm(self.conv(x))
    found += x
    return F.relu(found, inplace=True).mean([2, 3])


def scale_axes(self, x):
    up = F.interpolate(self.conv(F.max_pool2d(x, 2)), scale_factor=2, mode="bilinear")
    return up.add(F.interpolate(F.avg_pool2d(x, 2), size=(16, 16), mode="nearest")).flatten(1)


def assigned(self, x):
    found = x.clone()
    found[:, 0] = 0
    found[:, 1:3] = found[:, 1:3] * 2
    return found


def reshaped(self, x):
    rows = x.shape[0]
    return x.reshape(rows * 2, 4).reshape(rows, 8) + torch.zeros(rows, 8) + torch.arange(8) * 1.0


def figures(self, x):
    columns = (x.mean(1), x.std(1), x.var(1, unbiased=False), x.amax(1), x.max(1).values, x.norm(dim=1), x.prod(1))
    return torch.stack([*columns, x.cumsum(1)[:, -1], x.sort(1).values[:, 0], x.logsumexp(1), x.median(1).values], 1)


def waves(self, x):
    parts = (x.sin(), x.cos(), x.exp().log1p(), x.abs().sqrt(), torch.tanh(x), torch.sigmoid(x), x**2, torch.erf(x))
    return torch.cat(parts, -1)


def squeezed(self, x):
    return (x * torch.sigmoid(self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))))).flatten(1)


def last(self, x):
    return self.inner(x)[0][:, -1]


def moments(self, x):
    found = self.inner(x)
    return torch.stack([found[:, :1], F.softplus(found[:, 1:]) + 1e-3], -1)


SMOOTH = (nn.ELU, nn.SELU, nn.CELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid, nn.ReLU6, nn.LeakyReLU)

NETWORKS = {
    "perceptron": (
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.GELU(), nn.Dropout(), nn.Softmax(1)),
        ROWS,
    ),
    "activations": (
        nn.Sequential(*(one() for one in SMOOTH), nn.PReLU(), nn.Softplus(), nn.GELU("tanh"), nn.LogSoftmax(1)),
        ROWS,
    ),
    "in place": (
        nn.Sequential(nn.Linear(8, 8), *(one(inplace=True) for one in SMOOTH), nn.Dropout(inplace=True)),
        ROWS,
    ),
    "convolutions": (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, padding="same"),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.GroupNorm(2, 4),
            nn.Dropout2d(),
            nn.AvgPool2d(2),
            nn.Conv2d(4, 4, 3, groups=4, padding=1),
            nn.InstanceNorm2d(4, affine=True),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 2),
        ),
        IMAGES,
    ),
    "upwards": (
        nn.Sequential(
            nn.ConvTranspose2d(3, 4, 2, 2),
            nn.Upsample(scale_factor=2),
            nn.PixelShuffle(2),
            nn.ZeroPad2d(1),
            nn.ReflectionPad2d(1),
            nn.ReplicationPad2d(1),
            nn.Flatten(),
        ),
        IMAGES,
    ),
    "one axis": (
        nn.Sequential(nn.Conv1d(6, 4, 3), nn.BatchNorm1d(4), nn.MaxPool1d(2), nn.AdaptiveAvgPool1d(1), nn.Flatten()),
        STEPS,
    ),
    "three axes": (
        nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 2, 3, padding=1), nn.BatchNorm3d(2), nn.Flatten()),
        IMAGES,
    ),
    "residual": (Calls(residual, conv=nn.Conv2d(3, 3, 1), norm=nn.BatchNorm2d(3)), IMAGES),
    "scaled": (Calls(scale_axes, conv=nn.Conv2d(3, 3, 1)), IMAGES),
    "squeezed": (Calls(squeezed, down=nn.Conv2d(3, 1, 1), up=nn.Conv2d(1, 3, 1)), IMAGES),
    "vision": (Vision(), IMAGES),
    "encoder": (
        nn.Sequential(nn.Embedding(50, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Flatten()),
        TOKENS,
    ),
    "decoder": (
        Calls(lambda self, x: self.inner(x, x).mean(1), inner=nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)),
        STEPS,
    ),
    "attention": (
        Calls(lambda self, x: self.inner(x, x, x)[0].flatten(1), inner=nn.MultiheadAttention(8, 2, batch_first=True)),
        STEPS,
    ),
    "causal": (Calls(causal, inner=nn.Linear(8, 24)), STEPS),
    "masked": (Calls(masked, inner=nn.Linear(8, 24)), STEPS),
    "pooled": (Calls(pooled, words=nn.Embedding(50, 8, padding_idx=0), places=nn.Embedding(9, 8)), TOKENS),
    "lstm": (Calls(last, inner=nn.LSTM(8, 7, 2, batch_first=True, bidirectional=True)), STEPS),
    "gru": (Calls(last, inner=nn.GRU(8, 7, batch_first=True)), STEPS),
    "rnn": (Calls(last, inner=nn.RNN(8, 7, batch_first=True)), STEPS),
    "moments": (Calls(moments, inner=nn.Linear(8, 2)), ROWS),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)), ROWS),
    "einsum": (Calls(lambda self, x: torch.einsum("btc,bsc->bts", x, x).sum((1, 2))[:, None]), STEPS),
    "assigned": (Calls(assigned), ROWS),
    "reshaped": (Calls(reshaped), ROWS),
    "indexed": (Calls(lambda self, x: x[:, torch.tensor([0, 2, 1])] * x[:, ::2][:, :3]), ROWS),
    "figures": (Calls(figures), ROWS),
    "waves": (Calls(waves), ROWS),
    "one hot": (Calls(lambda self, x: F.one_hot(x, 50).float().mean(1)), TOKENS),
    "ordered": (Calls(lambda self, x: x.gather(1, x.argsort(1)).roll(1, 1).flip(1)), ROWS),
    "types": (Calls(lambda self, x: self.inner(x.double().float()).float(), inner=nn.Linear(8, 8)), ROWS),
    "chosen": (Calls(lambda self, x: torch.where(x > 0, x, torch.zeros_like(x)).topk(3, dim=1).values), ROWS),
    "similar": (
        Calls(lambda self, x: F.cosine_similarity(x, self.inner.weight[:1], dim=1)[:, None], inner=nn.Linear(8, 8)),
        ROWS,
    ),
    "spectrum": (Calls(lambda self, x: torch.fft.rfft(x).abs()), ROWS),
}
