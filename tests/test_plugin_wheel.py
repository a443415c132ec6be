"""A wheel with a plug-in of every kind, installed where Trainwright is: from study files, from Python and in workers.

The searcher, the rule, the policy, the strategy, the format and the combination rule are those of the page on
extending; the engine and the ledger are below.
"""

import base64
import hashlib
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import trainwright as tw

ROOT = Path(__file__).parents[1]
ENTRY_POINTS = {
    "trainwright.searchers": "HillClimber = own_searcher:HillClimber",
    "trainwright.rules": "Race = own_rule:Race",
    "trainwright.policies": "Upgrade = own_policy:Upgrade",
    "trainwright.engines": "Counted = own_engine:Counted",
    "trainwright.ledgers": "shelf = own_ledger:ShelfLedger",
    "trainwright.formats": "plain = own_format:Plain",
    "trainwright.combinations": "trimmed = own_combination:Trimmed",
    "trainwright.strategies": "ring = own_strategy:Ulysses",
}
ENGINE = '''
"""An engine that counts its launches in a file."""

from pathlib import Path

import trainwright as tw
from trainwright.engine.admission import EngineWrapper


class Counted(EngineWrapper):
    def __init__(self, *, count="launches"):
        super().__init__(tw.Local(workers=0))
        self.count = count

    def launch(self, assignment, block):
        with Path(self.count).open("a") as file:
            file.write(f"{assignment.trial}\\n")
        super().launch(assignment, block)
'''
LEDGER = '''
"""A ledger in a folder that a URL names: shelf://PATH."""

from trainwright.ledger import DirectoryLedger


class ShelfLedger(DirectoryLedger):
    def __init__(self, url, *, create=False):
        super().__init__(url.removeprefix("shelf://"), create=create)
'''
TRAINING = '''
"""A training function that a worker finds by name."""


def train(trial):
    for epoch in range(1, 5):
        trial.report(loss=trial.params["x"] + 1 / epoch)
'''
STUDY = """
[study]
train = "plug_in_training:train"
objectives = "min loss"
directory = "study"
ledger = "shelf://{folder}/records"
trials = 6

[space.x]
kind = "float"
low = 0.0
high = 1.0

[searcher]
name = "HillClimber"
step = 0.2

[rule]
name = "Race"
margin = 0.9
max_epochs = 4

[policy]
name = "Upgrade"

[engine]
name = "Counted"
count = "launches"
"""
IN_PYTHON = """
from pathlib import Path

import torch

import trainwright as tw
from own_combination import Trimmed
from own_ledger import ShelfLedger
from own_rule import Race
from own_searcher import HillClimber
from plug_in_training import train
from trainwright import plugins
from trainwright.checkpoint.tools.convert import convert
from trainwright.checkpoint.tools.formats.format import FORMATS, format_of
from trainwright.ensemble.combine.rules import RULES, make_rule
from trainwright.plan import Degrees, Oracle
from trainwright.profile import describe_transformer

# Objects, as classes and by name.
study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", ledger="shelf://python", searcher=HillClimber(step=0.3))
engine = plugins.make("engine", {"name": "Counted", "count": "python-launches"})
study.run(train, trials=4, scheduler=Race(margin=0.9, max_epochs=4), engine=engine, progress=False)
assert isinstance(study._log.ledger, ShelfLedger)
assert plugins.describe("searcher", HillClimber(step=0.3)) == {
    "name": "HillClimber", "from": "every-kind==1.5", "step": 0.3,
}
study.close()
assert len(open("python-launches").readlines()) >= 4
again = tw.Study.open("shelf://python")
assert isinstance(again.searching.choose(None, ""), HillClimber)
again.close()

# A format, a combination rule and a strategy by their names.
FORMATS["torch"].write(Path("a.pt"), {"w": torch.arange(6.0)})
convert(Path("a.pt"), Path("a.plain"), to="plain")
assert format_of(Path("a.plain")).name == "plain"
assert "trimmed" in RULES and make_rule("trimmed", "values") == Trimmed()
model = describe_transformer(hidden=64, layers=2, heads=8, sequence=32, vocabulary=100)
forecast = Oracle(tw.Cluster.preset("dgx-a100")).estimate(model, batch=8, degrees=Degrees(ring=4))
assert any(each.axis == "ring" for each in forecast.collectives)
print("python done")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return the Python of an environment that has the wheel, and what this one has."""
    folder = tmp_path_factory.mktemp("environment")
    wheel = build_wheel(folder)
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    packages = folder / "env" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    present = [str(ROOT / "src"), sysconfig.get_paths()["purelib"]]
    (packages / "present.pth").write_text("\n".join(present) + "\n", encoding="utf-8")
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", str(packages)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True, timeout=120)
    return python


def build_wheel(folder):
    """Return a wheel of the modules, made as its specification says: a zip with metadata."""
    sources = [ROOT / "examples" / "own_searcher.py", *(ROOT / "examples" / "plugins").glob("own_*.py")]
    files = {path.name: path.read_text(encoding="utf-8") for path in sources}
    files |= {"own_engine.py": ENGINE, "own_ledger.py": LEDGER}
    info = "every_kind-1.5.dist-info"
    files[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: every-kind\nVersion: 1.5\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    groups = (f"[{group}]\n{entry}\n" for group, entry in ENTRY_POINTS.items())
    files[f"{info}/entry_points.txt"] = "\n".join(groups)
    rows = [f"{name},sha256={digest(text)},{len(text.encode())}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"])
    wheel = folder / "every_kind-1.5-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def digest(text):
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
def project(tmp_path):
    """Return a folder with the training function."""
    (tmp_path / "plug_in_training.py").write_text(TRAINING, encoding="utf-8")
    return tmp_path


def run(python, arguments, folder, *, status=0):
    """Run a command of the environment as a person does; return what it wrote."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, *arguments], cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == status, done.stderr + done.stdout
    return done.stdout + done.stderr


def test_plug_ins_work_from_a_study_file_and_in_a_joining_worker(environment, project):
    """A file names them; a worker makes them from the ledger; one that lacks them refuses with one sentence."""
    (project / "study.toml").write_text(STUDY.format(folder=project), encoding="utf-8")
    run(environment, ["-m", "trainwright", "run", "study.toml", "--quiet"], project)
    launches = (project / "launches").read_text().split()
    assert len(set(launches)) == 6
    said = run(environment, ["-m", "trainwright", "worker", "study", "--trials", "9"], project)
    assert "Traceback" not in said
    read = "import trainwright as tw; print(*[t.origin['searcher'] for t in tw.Study.open('study').trials])"
    assert run(environment, ["-c", read], project).split() == 9 * ["hill"]
    # Without the wheel: neither the ledger's URL nor the searcher's name means anything.
    said = run(sys.executable, ["-m", "trainwright", "worker", "study", "--trials", "12"], project, status=2)
    assert "ledger: got shelf://" in said
    assert "Traceback" not in said


def test_a_worker_without_the_plug_in_is_told_what_to_install(environment, project):
    """The ledger of the study is an ordinary one; its searcher is not."""
    text = STUDY.replace('ledger = "shelf://{folder}/records"\n', "")
    (project / "study.toml").write_text(text, encoding="utf-8")
    run(environment, ["-m", "trainwright", "run", "study.toml", "--quiet"], project)
    said = run(sys.executable, ["-m", "trainwright", "worker", "study", "--trials", "9"], project, status=2)
    assert "a plug-in of every-kind==1.5, which is not installed here" in said
    assert len(said.strip().splitlines()) == 1
    with tw.Study.open(project / "study") as study:
        assert len(study.trials) == 6


def test_plug_ins_work_from_python(environment, project):
    (project / "script.py").write_text(IN_PYTHON, encoding="utf-8")
    assert "python done" in run(environment, ["script.py"], project)
