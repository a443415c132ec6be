"""What saving costs on three trained models: a convolutional net, a transformer and a perceptron, in every format.

    python benchmarks/checkpoint/models.py --json --results benchmarks/results/checkpoint_models.json

The states are those of some epochs on scikit-learn's digits, AdamW included, not random numbers. Ways of saving take
turns; medians are shown.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._report import ROOT, add_arguments, environment, finish, progress, table

__all__ = ["HEADER", "MODELS", "cnn", "main", "measure", "mlp", "transformer"]

HEADER = ["model and way", "blocking s", "written s", "restored s", "size / raw", "files", "bitwise"]


def cnn() -> Any:
    """Return a convolutional net of 5.1 M parameters and its optimizer, trained a little."""
    from torch import nn

    return _trained(
        nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, padding=1),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2048, 2400),
            nn.ReLU(),
            nn.Linear(2400, 10),
        )
    )


def transformer() -> Any:
    """Return a transformer of 6.3 M parameters over the rows of the image, and its optimizer, trained a little."""
    from torch import nn

    layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.1, batch_first=True)
    return _trained(
        nn.Sequential(
            nn.Unflatten(1, (8, 8)),
            nn.Linear(8, 256),
            nn.TransformerEncoder(layer, 8, enable_nested_tensor=False),
            nn.Flatten(),
            nn.Linear(2048, 10),
        )
    )


def mlp() -> Any:
    """Return a perceptron of 5.4 M parameters and its optimizer, trained a little."""
    from torch import nn

    return _trained(
        nn.Sequential(nn.Linear(64, 2048), nn.GELU(), nn.Linear(2048, 2560), nn.GELU(), nn.Linear(2560, 10))
    )


MODELS: dict[str, Callable[[], Any]] = {"CNN": cnn, "transformer": transformer, "MLP": mlp}
"""The factories."""


def measure(repeats: int = 5, models: tuple[str, ...] = tuple(MODELS)) -> dict[str, Any]:
    """Bench the models; return a bench for each by name."""
    from benchmarks.checkpoint._bench import bench, collect_state

    found = {}
    for name in models:
        progress(f"{name}: training")
        state = collect_state(MODELS[name]())
        progress(f"{name}: measuring")
        found[name] = bench(state, directory=ROOT / "benchmarks", repeats=repeats)
    return found


def rows(found: dict[str, Any]) -> list[list[str]]:
    """Return the rows of the table."""
    lines = []
    for model, bench in found.items():
        lines.append([f"{model}, {bench.raw_bytes / 1e6:.1f} MB in {bench.tensors} tensors", *[""] * 6])
        lines += [
            [
                f"- {row.name}",
                *(f"{seconds:.3f}" for seconds in (row.blocking, row.total, row.restore)),
                f"{row.bytes / bench.raw_bytes:.4f}",
                str(row.files),
                "yes" if row.bitwise else "no",
            ]
            for row in bench.rows
        ]
    return lines


def _trained(model: Any, steps: int = 60) -> Any:
    import torch
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    pixels, labels = load_digits(return_X_y=True)
    images, targets = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        chosen = torch.randint(len(images), (64,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[chosen]), targets[chosen]).backward()
        optimizer.step()
    return model, optimizer


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    from dataclasses import asdict

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="rounds, after one to warm up")
    parser.add_argument("--models", default=",".join(MODELS), help="some of them, with commas")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    found = measure(arguments.repeats, tuple(arguments.models.split(",")))
    lines = rows(found)
    print(table(HEADER, lines))
    for name, bench in found.items():
        print(f"{name}: {bench.recommendation}")
    result = {
        "benchmark": "checkpoint_models",
        "summary": {f"{name}_{row.name}_bitwise": row.bitwise for name, bench in found.items() for row in bench.rows},
        "models": {name: asdict(bench) for name, bench in found.items()},
        "settings": {"repeats": arguments.repeats},
        "table": {"header": HEADER, "rows": lines},
        "environment": environment(),
    }
    finish(result, arguments)
    return result


if __name__ == "__main__":
    main()
