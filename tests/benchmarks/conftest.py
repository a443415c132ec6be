"""Benchmarks are scripts, not an installed package: their tests import them from the repository's root."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Write a parent of two small sets in the shared tables' format: one maximised, one with gaps."""
    generator = np.random.default_rng(0)

    def write(name: str, space: dict, directions: dict, arrays: dict, order: np.ndarray) -> None:
        folder = tmp_path / "tables" / name
        folder.mkdir(parents=True)
        names = list(space)
        content = {"hyperparameters_in_column_order": names, "search_space": space, "directions": directions}
        (folder / "space.json").write_text(json.dumps(content))
        grid = np.stack(np.meshgrid(*[np.arange(len(v)) for v in space.values()], indexing="ij"), -1)
        index = grid.reshape(-1, len(names)).astype(np.uint8)
        np.savez(folder / "first.npz", hp_index=index[order], **{key: value[order] for key, value in arrays.items()})

    accuracy = generator.uniform(0, 1, (12, 3)).astype(np.float32)
    directions = {"train_time": "minimize", "val_acc": "maximize"}
    space = {"lr": [0.001, 0.01, 0.1], "width": [8, 16, 32, 64]}
    write("accuracies", space, directions, {"val_acc": accuracy}, generator.permutation(12))
    loss = np.arange(6, dtype=np.float32)[:, None] + np.array([0.0, 2.0], np.float32)
    loss[1, 1] = np.nan
    space = {"act": ["relu", "tanh"], "depth": [1, 2, 3]}
    write("losses", space, {"val_loss": "minimize"}, {"val_loss": loss}, np.arange(6)[::-1])
    return tmp_path / "tables"
