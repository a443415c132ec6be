"""Kept searches: found again, cut lines survived."""

from pathlib import Path

from benchmarks.search.cells import Cell, Cells, Key

KEY = Key("random 1", "set/table", "abc", 0, 1)


def test_a_kept_cell_is_found_by_its_key_and_serves_shorter_budgets(tmp_path: Path):
    Cells(tmp_path / "random.jsonl").add(Cell(KEY, (4, 2, 9), 0.5))
    again = Cells(tmp_path / "random.jsonl")
    assert again.find(KEY, 3) == again.find(KEY, 2) == Cell(KEY, (4, 2, 9), 0.5)
    assert again.find(KEY, 4) is None
    for other in (KEY._replace(version="random 2"), KEY._replace(digest="abd"), KEY._replace(seed=1)):
        assert again.find(other, 3) is None


def test_the_longest_of_equal_keys_is_kept(tmp_path: Path):
    cells = Cells(tmp_path / "random.jsonl")
    cells.add(Cell(KEY, (1, 2, 3), 0.5))
    cells.add(Cell(KEY, (1, 2), 0.5))
    assert len(Cells(tmp_path / "random.jsonl").find(KEY, 2).rows) == 3


def test_a_line_cut_at_any_byte_is_dropped_and_the_next_cell_survives(tmp_path: Path):
    path = tmp_path / "random.jsonl"
    Cells(path).add(Cell(KEY, (4, 2, 9), 0.5))
    Cells(path).add(Cell(KEY._replace(seed=1), (5, 5, 5), 0.5))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole) - 1):
        path.write_bytes(whole[:cut])
        cells = Cells(path)
        assert cells.find(KEY, 3) is not None
        assert cells.find(KEY._replace(seed=1), 3) is None
        cells.add(Cell(KEY._replace(seed=2), (7, 7, 7), 0.5))
        again = Cells(path)
        assert again.find(KEY, 3) is not None
        assert again.find(KEY._replace(seed=2), 3) is not None
