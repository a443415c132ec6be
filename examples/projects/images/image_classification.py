"""A small convolutional network on small images: digits of scikit-learn, Fashion-MNIST as Debian packs it, CIFAR-10."""

import gzip
import os
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
LEFT = ("selection", "calibration", "test")  # the splits whose predictions every trial leaves

Split = tuple[torch.Tensor, torch.Tensor]


def train_digits(trial: tw.Trial) -> None:
    train(trial, digits(), "image_classification:digits_network")


def train_fashion_mnist(trial: tw.Trial) -> None:
    train(trial, fashion_mnist(), "image_classification:fashion_network")


def train_cifar_10(trial: tw.Trial) -> None:
    train(trial, cifar_10(), "image_classification:cifar_network")


def train(trial: tw.Trial, data: dict[str, Split], factory: str) -> None:
    images, labels = data["train"]
    model = network(images.shape[1:], trial.params)
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
            predictions={name: probabilities(model, data[name][0], trial.device) for name in LEFT},
            targets={name: data[name][1] for name in LEFT},
            sample=images[:128].to(trial.device),
            factory=factory,
        )
        trial.report(val_loss=val_loss, val_accuracy=val_accuracy)


def network(shape: tuple[int, ...], params: Mapping[str, Any]) -> nn.Module:
    """Images [N, *shape], shape (channels, side, side), to logits [N, 10]."""
    width, hidden = params["width"], params["hidden"]
    return nn.Sequential(
        nn.Conv2d(shape[0], width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (shape[-1] // 4) ** 2, hidden),
        nn.ReLU(),
        nn.Dropout(params["dropout"]),
        nn.Linear(hidden, 10),
    )


def digits_network(params: Mapping[str, Any]) -> nn.Module:
    return network((1, 8, 8), params)


def fashion_network(params: Mapping[str, Any]) -> nn.Module:
    return network((1, 28, 28), params)


def cifar_network(params: Mapping[str, Any]) -> nn.Module:
    return network((3, 32, 32), params)


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


# What [plan] and [deployment] of a study file name.


def profile_fashion(params: Mapping[str, Any]) -> tuple[tw.Profile, int]:
    """Return the profile of a network at least as large, traced without running it, and the batch."""
    wide, hidden = (1 << (params[name] - 1).bit_length() for name in ("width", "hidden"))
    return traced(wide, hidden), params["batch_size"]


@cache  # sizes are rounded up to powers of two, so that few are traced
def traced(width: int, hidden: int) -> tw.Profile:
    with torch.device("meta"):
        model = network((1, 28, 28), {"width": width, "hidden": hidden, "dropout": 0.0})
    return tw.Profile.trace(model, (torch.empty(32, 1, 28, 28),))


def fashion_rows() -> torch.Tensor:
    return fashion_mnist()["calibration"][0][:64]


# The data: splits are cut once, by seeds of their own, so that all trials leave predictions for the same rows.


@cache
def digits() -> dict[str, Split]:
    """1,797 images of 8 x 8.

    850 to train on, 250 that steer the search, 300 that select the ensemble, 100 that calibrate it, 297 to judge.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    sizes = {"train": 850, "validation": 250, "selection": 300, "calibration": 100}
    return splits(images[order].reshape(-1, 1, 8, 8) / 16, labels[order], **sizes)


@cache
def fashion_mnist() -> dict[str, Split]:
    """10,000 of the 60,000 training images of 28 x 28 (7,500 / 1,000 / 1,000 / 500), judged on 2,000 test images."""
    if not FASHION_MNIST.is_dir():
        raise FileNotFoundError(f"{FASHION_MNIST} is missing; install it with: apt-get install dataset-fashion-mnist")
    parts = [(read_idx("train-images-idx3"), read_idx("train-labels-idx1"), 10_000)]
    parts.append((read_idx("t10k-images-idx3"), read_idx("t10k-labels-idx1"), 2_000))
    images = np.concatenate([images[:count] for images, _, count in parts]).reshape(-1, 1, 28, 28) / 255
    labels = np.concatenate([labels[:count] for _, labels, count in parts])
    return splits(images, labels, train=7_500, validation=1_000, selection=1_000, calibration=500)


@cache
def cifar_10() -> dict[str, Split]:
    """10,000 of the 50,000 training images of 3 x 32 x 32, judged on 2,000 test images; from the folder CIFAR10.

    That folder holds CIFAR-10's binary version: data_batch_1.bin and test_batch.bin.
    """
    folder = Path(os.environ.get("CIFAR10", ""))
    if not (folder / "data_batch_1.bin").is_file():
        raise FileNotFoundError(
            f"CIFAR10={os.environ.get('CIFAR10', '')} holds no data_batch_1.bin; set CIFAR10 to the folder "
            "cifar-10-batches-bin of CIFAR-10's binary version"
        )
    rows = [np.fromfile(folder / name, np.uint8).reshape(-1, 3073) for name in ("data_batch_1.bin", "test_batch.bin")]
    both = np.concatenate([rows[0][:10_000], rows[1][:2_000]])  # a label, then 1,024 bytes a colour
    images = both[:, 1:].reshape(-1, 3, 32, 32) / 255
    return splits(images, both[:, 0], train=7_500, validation=1_000, selection=1_000, calibration=500)


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
