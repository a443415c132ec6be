"""The public face: light to import, complete, and the same for people and type checkers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import trainwright

HEAVY = ("torch", "ray", "numba", "scipy", "polars", "pyarrow", "optuna", "sklearn", "rich", "click", "numpy")
SOURCE = Path(trainwright.__file__)


def fresh(code):
    """Run code in a new interpreter and return what it prints."""
    path = str(SOURCE.parents[1])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r})\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout.split()


def loaded_after(code):
    """Return the heavy packages that are loaded after `code`."""
    return set(fresh(f"{code}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"))


def test_importing_it_loads_nothing_heavy():
    assert loaded_after("import trainwright as tw\ntw.__version__, dir(tw)") == set()


def test_a_study_in_memory_needs_no_torch_and_no_plots():
    """Only what the work needs is loaded: a random search needs numpy alone."""
    code = (
        "import trainwright as tw\n"
        "study = tw.Study(tw.Space(x=tw.Float(0, 1)), 'min loss', searcher=tw.RandomSearcher())\n"
        "study.run(lambda trial: trial.params['x'], trials=3, engine=tw.Local(workers=0), progress=False)"
    )
    assert loaded_after(code) <= {"numpy", "numba"}


def test_a_worker_of_a_function_without_torch_loads_none():
    assert "torch" not in loaded_after("import trainwright.engine.process.worker")


@pytest.mark.parametrize("name", trainwright.__all__)
def test_every_name_resolves(name):
    """Each is there, is the same at every access, and can be imported by name."""
    value = getattr(trainwright, name)
    assert getattr(trainwright, name) is value
    namespace = {}
    exec(f"from trainwright import {name}", namespace)  # noqa: S102 -- the import itself is what is tested
    assert namespace[name] is value


def test_all_names_in_a_fresh_interpreter():
    """No name depends on another having been used before."""
    code = "import importlib\nimport trainwright as tw\nfor name in tw.__all__:\n    getattr(tw, name)\nprint('done')"
    assert fresh(code) == ["done"]


def test_no_other_names():
    with pytest.raises(AttributeError, match="module 'trainwright' has no attribute 'Sutdy'"):
        trainwright.Sutdy  # noqa: B018 -- the access is what is tested
    assert dir(trainwright) == sorted(trainwright.__all__) == sorted(set(trainwright.__all__))


def test_type_checkers_see_the_same():
    """The stub, from which names are loaded too, re-exports all of them, each under its own name."""
    tree = ast.parse(SOURCE.with_suffix(".pyi").read_text(encoding="utf-8"))
    aliases = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert all(alias.asname == alias.name for alias in aliases)
    assert {*(alias.name for alias in aliases), "__version__"} == set(trainwright.__all__)


def test_it_is_typed_for_others():
    """The marker that tells type checkers to read this package's annotations is part of it."""
    assert (SOURCE.parent / "py.typed").exists()
