"""A searcher's digest changes with the code that it runs, and with nothing else."""

import shutil
from pathlib import Path

import pytest
from benchmarks.peers.sources import digest

import trainwright


@pytest.fixture
def package(tmp_path: Path) -> Path:
    home = Path(trainwright.__file__).parent
    for name in ("search", "space"):
        shutil.copytree(home / name, tmp_path / name)
    shutil.copy(home / "randomness.py", tmp_path)
    return tmp_path


def edit(path: Path, before: str, after: str):
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_other_searchers_and_words_change_nothing(package: Path):
    before = digest(package, "search.bayes.forest_searcher")
    edit(package / "search" / "bayes" / "gp_searcher.py", "_PRIOR = 10.0", "_PRIOR = 11.0")
    edit(package / "search" / "bayes" / "forest_searcher.py", '"""Bayesian', '"""# Bayesian')
    assert digest(package, "search.bayes.forest_searcher") == before


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("search/bayes/loop.py", "_ROUNDS = 2", "_ROUNDS = 3"),
        ("search/bayes/candidates.py", "_MUTATION = 0.1", "_MUTATION = 0.2"),
        ("search/bayes/trees.py", "import numpy as np", "import numpy as np\n\nMORE = 1"),
        ("space/axes.py", "0.5", "0.6"),
        ("randomness.py", "import numpy as np", "import numpy as np\n\nMORE = 1"),
    ],
)
def test_what_it_runs_changes_it(package: Path, file: str, before: str, after: str):
    known = digest(package, "search.bayes.forest_searcher")
    edit(package / file, before, after)
    assert digest(package, "search.bayes.forest_searcher") != known
