"""Reading tables: columns, rows, what an evaluation shows, regret."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.search.data import find_tables


def test_a_parent_gives_the_tables_of_all_its_sets(tables: Path):
    assert [t.name for t in find_tables(tables)] == ["accuracies/first", "losses/first"]
    assert [t.name for t in find_tables(tables / "losses")] == ["losses/first"]


def test_lists_of_numbers_are_ordinal_others_are_choices(tables: Path):
    assert [(c.name, c.kind) for t in find_tables(tables) for c in t.columns] == [
        ("lr", "ordinal"),
        ("width", "ordinal"),
        ("act", "choice"),
        ("depth", "ordinal"),
    ]


def test_place_finds_each_configuration_in_any_order_of_the_file(tables: Path):
    table = find_tables(tables / "accuracies")[0]
    with np.load(tables / "accuracies" / "first.npz") as arrays:
        for row, positions in enumerate(arrays["hp_index"]):
            assert table.place(positions.tolist()) == row
        assert np.array_equal(table.losses, -arrays["val_acc"].astype(float)), "accuracies are maximised"


def test_regret_is_0_at_the_best_and_1_at_the_median_of_means_over_data_seeds(tables: Path):
    table = find_tables(tables / "losses")[0]
    # means in the grid's order are 1, 1 (its second seed was not run), 3, 4, 5, 6; the file has them reversed
    assert table.truth.tolist() == [6.0, 5.0, 4.0, 3.0, 1.0, 1.0]
    assert table.regret([5, 2, 0]).tolist() == [0.0, 3 / 2.5, 2.0]


def test_an_evaluation_shows_one_data_seed_that_was_run(tables: Path):
    table = find_tables(tables / "losses")[0]
    assert {table.show(seed, 4, 0) for seed in range(20)} == {1.0}
    assert {table.show(seed, 5, 0) for seed in range(20)} == {0.0, 2.0}
    assert {table.show(0, 5, repeat) for repeat in range(20)} == {0.0, 2.0}
    assert table.show(3, 5, 1) == table.show(3, 5, 1)


def test_incomplete_grid_and_empty_folder_are_refused(tables: Path, tmp_path: Path):
    path = tables / "losses" / "first.npz"
    with np.load(path) as arrays:
        cut = {name: value[1:] for name, value in arrays.items()}
    np.savez(path, **cut)
    with pytest.raises(SystemExit, match="no complete grid: 5 rows for 6 configurations"):
        find_tables(tables)
    with pytest.raises(SystemExit, match="holds no set of tables"):
        find_tables(tmp_path / "nothing")


def test_a_set_without_validation_metric_is_refused(tables: Path):
    path = tables / "losses" / "space.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"directions": {"train_time": "minimize"}}))
    with pytest.raises(SystemExit, match=r"no val_\* metric"):
        find_tables(tables)
