"""The house: floors, imports, lengths, and a docstring for every public name."""

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module

import pytest

from source_files import FILES, ROOT, tree

FLOORS = {
    **dict.fromkeys(("space", "cluster"), 0),
    **dict.fromkeys(("ledger", "model"), 1),
    **dict.fromkeys(("search", "schedule", "checkpoint", "plan", "profile"), 2),
    "train": 3,
    **dict.fromkeys(("engine", "memory"), 4),
    "study": 5,
    "ensemble": 6,
    **dict.fromkeys(("report", "serve"), 7),
    **dict.fromkeys(("integrations", "testing", "ui"), 8),
    "cli": 9,  # a command above the page that it starts
}
BELOW_ALL = (
    "aliases",
    "errors",
    "files",
    "http_security",
    "kernels",
    "pareto",
    "plugins",
    "publishing",
    "records",
    "randomness",
    "settings",
    "signals",
    "validators",
)
WITHOUT_TORCH = [name for name, floor in FLOORS.items() if floor <= 2 and name not in {"model", "checkpoint"}]
WITH_TORCH = (ROOT / "cluster" / "calibration",)  # it measures what torch does on this machine
LONGEST = 450

MODULES = {
    ".".join(("trainwright", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in FILES
}


def package(module):
    """Return the part of the house that a module belongs to: "space" for trainwright.space.columns."""
    parts = module.split(".")
    if parts[:2] == ["trainwright", "__main__"]:
        return "cli"
    return parts[1] if parts[0] == "trainwright" and len(parts) > 1 else ""


def imports(syntax, *, top_only=False):
    """Yield (module, line) of each import; `from trainwright import ledger` counts as trainwright.ledger."""
    for node in syntax.body if top_only else ast.walk(syntax):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            if node.module == "trainwright":
                yield from ((f"trainwright.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield node.module, node.lineno


def without_type_imports(syntax):
    """Return a module's imports, late ones too, without what only a type checker reads."""
    found, left = ast.Module([], []), [syntax]
    while left:
        node = left.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.body.append(node)
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            # Expressions hold no imports.
            left += [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr)]
    return found


def test_every_package_has_a_floor():
    """A new package is entered in the table here before it imports anything."""
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages <= set(FLOORS)
    assert {path.stem for path in ROOT.glob("*.py")} == {"__init__", "__main__", *BELOW_ALL}


def test_the_page_shows_every_floor():
    """The table of the explanation is the one above."""
    page = (ROOT.parents[1] / "docs" / "explanation" / "structure.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", page.split("## Floors")[1], re.MULTILINE)
    assert {name: int(floor) for floor, names in rows for name in re.findall(r"`(\w+)`", names)} == FLOORS


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module):
    """A package imports its own modules, packages of lower floors, and what lies below all; so no cycle can arise."""
    own = package(module)
    wrong = []
    for imported, line in imports(tree(MODULES[module])):
        if not imported.startswith("trainwright"):
            continue
        other = package(imported)
        if own in BELOW_ALL:
            allowed = other in BELOW_ALL
        elif not own or other in {own, *BELOW_ALL}:  # the package's face names everything, and loads nothing
            allowed = True
        elif other in FLOORS:
            allowed = FLOORS[other] < FLOORS[own]
        else:  # a name of the package's face: only above everything that it names
            allowed = FLOORS[own] >= 8 or imported in {"trainwright", "trainwright.__version__"}
        if not allowed:
            wrong.append(f"line {line}: {imported}")
    assert not wrong, f"{module} imports {', '.join(wrong)}"


def test_no_module_imports_itself_in_a_circle():
    """Within a package too, imports inside of functions included: modules have an order."""
    graph = {}
    for module, path in MODULES.items():
        if path.name == "__init__.py":
            continue
        names = [name for name, _ in imports(without_type_imports(tree(path))) if name in MODULES]
        graph[module] = {name for name in names if MODULES[name].name != "__init__.py"} - {module}
    done = set()
    while len(done) < len(graph):
        ready = [module for module, needs in graph.items() if module not in done and needs <= done]
        assert ready, f"a circle among {sorted(set(graph) - done)}"
        done.update(ready)


def test_the_house_does_not_grow():
    """Lower these counts when they fall; whoever must raise one says why in the commit."""
    lines = sum(bool(line.strip()) for path in FILES for line in path.read_text(encoding="utf-8").splitlines())
    faces = sum(len(import_module(f"trainwright.{path.parent.name}").__all__) for path in ROOT.glob("*/__init__.py"))
    assert lines <= 69_326
    assert len(FILES) <= 513
    assert faces <= 162


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_lower_floors_need_no_torch(name):
    """Floors 0 to 2, but for checkpoint, model and one room, import no torch, not even late."""
    rest = [path for path in FILES if path.relative_to(ROOT).parts[0] == name and path.parent not in WITH_TORCH]
    assert not [path for path in rest if imports_any(path, {"torch"})]


def test_engines_import_no_ray_tune_or_train():
    """Nothing under engine imports ray."""
    assert not [path for path in FILES if path.relative_to(ROOT).parts[0] == "engine" and imports_any(path, {"ray"})]


def test_heavy_packages_are_loaded_where_they_are_used():
    """Loading every package of the house loads numpy and the command line's parser, and nothing else of weight."""
    packages = [f"trainwright.{path.parent.name}" for path in ROOT.glob("*/__init__.py")]
    heavy = (
        "torch",
        "ray",
        "numba",
        "scipy",
        "polars",
        "pyarrow",
        "optuna",
        "botorch",
        "sklearn",
        "rich",
        "hypothesis",
    )
    code = (
        f"import sys, importlib; sys.path.insert(0, {str(ROOT.parent)!r})\n"
        f"for name in {packages!r}: importlib.import_module(name)\n"
        f"print(*[name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split() == []


def test_test_kits_are_for_tests():
    """Conformance classes may need a test library: nothing imports them."""
    kits = {module for module in MODULES if module.endswith(".conformance") or package(module) == "testing"}
    others = {module: path for module, path in MODULES.items() if package(module) != "testing"}
    assert not [module for module, path in others.items() if kits & {name for name, _ in imports(tree(path))}]


def imports_any(path, roots):
    return any(not typing_only(path, name) for name, _ in imports(tree(path)) if name.split(".")[0] in roots)


def typing_only(path, name):
    """Whether a module is imported under TYPE_CHECKING alone."""
    guarded = [
        found
        for node in ast.walk(tree(path))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for found, _ in imports(node)
    ]
    return guarded.count(name) == [found for found, _ in imports(tree(path))].count(name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files(path):
    """A file opens with a docstring, and is not longer than anybody reads unless its top says why."""
    text = path.read_text(encoding="utf-8")
    if path.name == "__init__.py" and not text and path.parent.parent != ROOT:
        return  # a room: only packages have faces
    documentation = ast.get_docstring(tree(path))
    assert documentation, "the module has no docstring"
    assert documentation.split("\n")[0].rstrip().endswith((".", ":", "`")), "its first line is no sentence"
    lines = len(text.splitlines())
    assert lines <= LONGEST or str(LONGEST) in documentation, f"{lines} lines, and no reason at its top"


def test_most_files_are_short():
    """Half of the files have at most 150 lines; those above 400 are few, and none has just grown to the limit."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert sorted(lengths.values())[len(lengths) // 2] <= 150
    long = {str(path.relative_to(ROOT)): lines for path, lines in lengths.items() if lines > 400}
    assert len(long) <= 10, long


def test_packages_depend_on_each_other_in_one_direction():
    """Imports inside of functions count too: no two packages need each other."""
    needs = {name: set() for name in FLOORS}
    for module, path in MODULES.items():
        if (own := package(module)) in FLOORS:
            needs[own] |= {package(name) for name, _ in imports(tree(path))} & set(FLOORS) - {own}
    order = []
    while len(order) < len(needs):
        ready = [name for name in needs if name not in order and needs[name] <= set(order)]
        assert ready, f"a circle among {sorted(set(needs) - set(order))}"
        order += ready


FACES = ["trainwright", *(f"trainwright.{path.parent.name}" for path in ROOT.glob("*/__init__.py"))]


@pytest.mark.parametrize("face", FACES)
def test_faces_are_curated(face):
    """A package says what it offers: names in order, once, all there, none private."""
    loaded = import_module(face)
    names = list(loaded.__all__)
    assert len(names) == len(set(names))
    private = [name for name in names if name.startswith("_") and name != "__version__"]
    assert not private
    assert not [name for name in names if not hasattr(loaded, name)]


WORDS = {  # the design's ideas, and where each has its class or function
    "space": "Space Float Int Choice Constant Derived require Normal Beta "
    "equals one_of less greater all_of any_of not_",
    "study": "Study Worker",
    "ledger": "Ledger DirectoryLedger RedisLedger MemoryLedger",
    "search": "RandomSearcher QuasiRandomSearcher GridSearcher EvolutionSearcher ForestSearcher "
    "GaussianProcessSearcher",
    "integrations.botorch": "BoTorchSearcher",
    "integrations.optuna.searcher": "OptunaSearcher",
    "schedule": "Scheduler FixedEpochs IEpoch Median Patience SuccessiveHalving ASHA Hyperband PASHA "
    "MultiObjectiveASHA Plateau AnyOf Fixed Doubling DoublingAsPublished MarginalGain BestStatic RASDA",
    "engine": "Local",
    "train": "Trial Loader from_optuna",
    "checkpoint": "Manager",
    "cluster": "Cluster",
    "profile": "Profile",
    "plan": "Oracle",
    "memory": "fit plan apply curve pipeline",
    "ensemble": "Library BudgetedGreedy Front Ensemble leave",
    "serve": "Deployment Client",
}


@pytest.mark.parametrize("name", WORDS)
def test_the_designs_words_are_the_codes(name):
    offered = import_module(f"trainwright.{name}").__all__
    assert set(WORDS[name].split()) <= set(offered)


PUBLIC = [module for module in MODULES if not any(part.startswith("_") for part in module.split("."))]


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_documented(module):
    """Every module lists what it exports, and each of these, with its public methods, has a docstring."""
    if len(tree(MODULES[module]).body) <= 1:
        return  # a package of nothing but a docstring, or a room
    loaded = import_module(module)
    assert hasattr(loaded, "__all__"), "it has no __all__"
    missing = []
    for name in loaded.__all__:
        item = getattr(loaded, name)
        if inspect.isclass(item) or inspect.isfunction(item):
            if not has_docstring(item):
                missing.append(name)
            if inspect.isclass(item) and item.__module__.startswith("trainwright"):
                missing += [f"{name}.{method}" for method in undocumented(item)]
    assert not missing


def undocumented(item):
    """Yield the public methods and properties that a class defines without a docstring."""
    for name, member in vars(item).items():
        if name.startswith("_") or getattr(member, "__overloads__", None):
            continue
        function = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        if inspect.isfunction(function) and function.__module__ == item.__module__ and not has_docstring(function):
            yield name


def has_docstring(item):
    written = item.__dict__.get("__doc__") if inspect.isclass(item) else item.__doc__
    return bool(written) and not written.startswith(f"{item.__name__}(")  # what dataclass writes is none
