"""A small GPT that reads Python's own help pages, byte by byte.

The text is `pydoc_data.topics`, what `help("topics")` shows: some 470 kB that come with every Python. Each trial trains
one transformer; the ensemble averages what they say of the next byte.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import trainwright as tw
from trainwright.profile import describe_transformer

CONTEXT, BYTES, HEADS = 64, 128, 4  # bytes that are read, kinds of bytes, heads of attention
ROWS = 400  # contexts a split whose predictions every trial leaves
SHARES = {"train": 0.8, "validation": 0.05, "selection": 0.05, "calibration": 0.05, "test": 0.05}
LEFT = ("selection", "calibration", "test")


class Block(nn.Module):
    """Causal attention and two layers behind it, each beside a skip: [N, T, width] to the same."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.mixed(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        read = scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.dropout(self.out(read.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.feed(self.norms[1](x)))


class GPT(nn.Module):
    """Bytes [N, T] to logits of the byte that follows each: [N, T, 128]."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__()
        width = HEADS * params["head"]
        self.bytes, self.places = nn.Embedding(BYTES, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, params["dropout"]) for _ in range(params["layers"])))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.bytes(x) + self.places(places))))


class Next(nn.Module):
    """What is served: bytes [N, 64] to logits of the next byte alone, [N, 128]."""

    def __init__(self, gpt: nn.Module) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gpt(x)[:, -1]


def network(params: Mapping[str, Any]) -> nn.Module:
    return Next(GPT(params))


def loss_of(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    (window,) = batch
    return cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())


def train(trial: tw.Trial) -> None:
    params = trial.params
    model = GPT(params)
    dataset = torch.utils.data.TensorDataset(windows("train", 2 * CONTEXT))
    loader = torch.utils.data.DataLoader(dataset, batch_size=params["batch"], shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=params["rate"], weight_decay=0.1)
    run = trial.prepare(model, optimizer, loader, loss=loss_of)
    served = Next(model)
    for _ in trial.epochs():
        model.train()
        for batch in run.loader:
            run.step(batch)
        model.eval()
        with torch.no_grad():
            val_loss = float(loss_of(model, [windows("validation", CONTEXT).to(trial.device)]))
            predictions = {name: served(contexts(name)[0].to(trial.device)).softmax(1).cpu() for name in LEFT}
        targets = {name: contexts(name)[1] for name in LEFT}
        sample = contexts("selection")[0][:128].to(trial.device)
        tw.ensemble.leave(trial, served, predictions=predictions, targets=targets, sample=sample, factory=network)
        trial.report(val_loss=val_loss)


def profile_of(params: Mapping[str, Any]) -> tuple[tw.Profile, int]:
    """Return what [plan] needs of a trial: the profile of its transformer by its shape alone, and its batch."""
    profile = describe_transformer(
        hidden=HEADS * params["head"],
        layers=params["layers"],
        heads=HEADS,
        sequence=CONTEXT,
        vocabulary=BYTES,
        fused_attention=True,
        tied=False,
        precision="fp32",
    )
    return profile, params["batch"]


@cache
def text() -> torch.Tensor:
    """Return the help pages as bytes; those beyond ASCII become question marks."""
    from pydoc_data.topics import topics

    return torch.tensor(list("\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")))


@cache
def part(split: str) -> torch.Tensor:
    """Return a split's stretch of the text: one after the other, so that none is seen in another."""
    names, whole = list(SHARES), text()
    ends = [round(sum(list(SHARES.values())[: place + 1]) * len(whole)) for place in range(len(names))]
    place = names.index(split)
    return whole[(ends[place - 1] if place else 0) : ends[place]]


def windows(split: str, step: int) -> torch.Tensor:
    """Return stretches of a context and one byte, every `step` bytes [N, 65]."""
    return part(split).unfold(0, CONTEXT + 1, step)


@cache
def contexts(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return contexts [400, 64] spread over a split, and the byte after each [400]."""
    every = windows(split, 1)
    chosen = every[torch.linspace(0, len(every) - 1, ROWS).long()]
    return chosen[:, :-1].contiguous(), chosen[:, -1].contiguous()


def asked() -> torch.Tensor:
    return contexts("calibration")[0][:64]
