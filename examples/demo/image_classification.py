"""A small convolutional network on small grey images: scikit-learn's digits, or Fashion-MNIST as Debian packs it."""

import gzip
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import trainwright as tw

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")

Split = tuple[torch.Tensor, torch.Tensor]


def train_digits(trial: tw.Trial) -> None:
    train(trial, digits())


def train_fashion_mnist(trial: tw.Trial) -> None:
    train(trial, fashion_mnist())


def train(trial: tw.Trial, data: dict[str, Split]) -> None:
    images, labels = data["train"]
    model = network(images.shape[-1], trial.params)
    dataset = torch.utils.data.TensorDataset(images, labels)
    loader = torch.utils.data.DataLoader(dataset, batch_size=trial.params["batch_size"], shuffle=True)
    run = trial.prepare(model, optimizer_of(model, trial.params), loader, loss=loss_of)
    for _ in trial.epochs():
        model.train()
        for batch in run.loader:
            run.step(batch)
        val_loss, val_accuracy = evaluate(model, data["validation"], trial.device)
        tw.ensemble.leave(
            trial,
            model,
            predictions={name: probabilities(model, data[name][0], trial.device) for name in ("selection", "test")},
            targets={name: data[name][1] for name in ("selection", "test")},
            sample=images[:128].to(trial.device),
        )
        trial.report(val_loss=val_loss, val_accuracy=val_accuracy)


def network(side: int, params: Mapping[str, Any]) -> nn.Module:
    width, hidden = params["width"], params["hidden"]
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (side // 4) ** 2, hidden),
        nn.ReLU(),
        nn.Dropout(params["dropout"]),
        nn.Linear(hidden, 10),
    )


def optimizer_of(model: nn.Module, params: Mapping[str, Any]) -> torch.optim.Optimizer:
    rate, decay = params["learning_rate"], params["weight_decay"]
    if params["optimizer"] == "sgd":
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=params["momentum"], weight_decay=decay)
    return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)


def loss_of(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    return cross_entropy(model(images), labels)


@torch.no_grad()
def evaluate(model: nn.Module, split: Split, device: str) -> tuple[float, float]:
    p = probabilities(model, split[0], device)
    labels = split[1]
    chosen = p[torch.arange(len(labels)), labels].clamp_min(1e-7)
    return float(-chosen.log().mean()), float((p.argmax(1) == labels).float().mean())


@torch.no_grad()
def probabilities(model: nn.Module, images: torch.Tensor, device: str) -> torch.Tensor:
    model.eval()
    return torch.cat([model(part.to(device)).softmax(1).cpu() for part in torch.split(images, 512)])


@cache
def digits() -> dict[str, Split]:
    """1,797 images of 8 x 8: 900 to train on, 250 that steer the search, 300 that select the ensemble, 347 to judge."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return splits(images[order].reshape(-1, 1, 8, 8) / 16, labels[order], train=900, validation=250, selection=300)


@cache
def fashion_mnist() -> dict[str, Split]:
    """10,000 of the 60,000 training images of 28 x 28 (8,000 / 1,000 / 1,000), judged on 2,000 of the test images."""
    if not FASHION_MNIST.is_dir():
        raise FileNotFoundError(f"{FASHION_MNIST} is missing; install it with: apt-get install dataset-fashion-mnist")
    parts = [(read_idx("train-images-idx3"), read_idx("train-labels-idx1"), 10_000)]
    parts.append((read_idx("t10k-images-idx3"), read_idx("t10k-labels-idx1"), 2_000))
    images = np.concatenate([images[:count] for images, _, count in parts]).reshape(-1, 1, 28, 28) / 255
    labels = np.concatenate([labels[:count] for _, labels, count in parts])
    return splits(images, labels, train=8_000, validation=1_000, selection=1_000)


def splits(images: np.ndarray, labels: np.ndarray, **sizes: int) -> dict[str, Split]:
    """Cut the rows, in their order, into the named splits and "test" for the rest."""
    x, y = torch.tensor(images, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64)
    cuts = np.cumsum([0, *sizes.values(), len(x) - sum(sizes.values())])
    names = [*sizes, "test"]
    return {name: (x[a:b], y[a:b]) for name, a, b in zip(names, cuts[:-1], cuts[1:], strict=True)}


def read_idx(name: str) -> np.ndarray:
    """Read a gzipped IDX file: four bytes of magic (the last is the rank), the sizes as big-endian int32, the bytes."""
    content = gzip.decompress((FASHION_MNIST / f"{name}-ubyte.gz").read_bytes())
    shape = np.frombuffer(content, ">i4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
