"""The commands by which a page installs the package work as they stand, with the pip that a new environment has."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from blocks import ROOT

INSTALLING = {
    page: re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
}
BLOCKS = [
    pytest.param(block, id=str(page.relative_to(ROOT)))
    for page, blocks in INSTALLING.items()
    for block in blocks
    if "pip install" in block
]

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
# A name may be found that starts nothing, as a version manager leaves it for those that are not chosen.
PYTHONS = [
    name
    for name in ("python3.11", "python3.12", "python3.13", "python3.14")
    if shutil.which(name) and not subprocess.run([name, "--version"], capture_output=True, check=False).returncode
]
CONSTRAINED = ["install", "--quiet", "--no-compile", "--constraint", ROOT / "constraints.txt"]

GIT_LIST = ["/usr/bin/env", "git", "ls-files", "-z"]
BASH = ["/usr/bin/env", "bash", "-euo", "pipefail", "-c"]


def test_a_page_says_how_to_install():
    assert BLOCKS


def test_no_page_asks_for_what_an_old_pip_lacks():
    """Python 3.11 brings pip 23.2, which has no `--group`; a distribution's own may be older still."""
    texts = {page: page.read_text(encoding="utf-8") for page in INSTALLING}
    assert not [page for page, text in texts.items() if re.search(r"pip install[^\n]*--group", text)]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("block", BLOCKS)
def test_installs_in_an_empty_environment(block, tmp_path):
    """In a copy of the tracked files; then the package is there and the demo's library too."""
    tree = tmp_path / "tree"
    tracked = subprocess.run(GIT_LIST, cwd=ROOT, capture_output=True, check=True).stdout
    for name in tracked.decode().strip("\0").split("\0"):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    # A new environment is made by the interpreter that made this one, as `python3` is where nothing is activated.
    paths = [path for path in clean["PATH"].split(os.pathsep) if not path.startswith(str(ROOT))]
    script = block + "\ntrainwright doctor >/dev/null\npython -c 'import torch, sklearn, trainwright'\n"
    done = subprocess.run(
        [*BASH, script],
        cwd=tree,
        env={**clean, "PATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def run_clean(*command, cwd):
    """Run a command outside of the checkout's environment and return what it printed."""
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run_clean(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    return next(folder.glob("*.whl"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("extra", EXTRAS)
def test_the_wheel_installs_with_each_extra(extra, python, wheel, tmp_path):
    """Alone in an empty environment: nothing is missing or contradicts, and `doctor` finds the extra whole."""
    run_clean(python, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    pip = (sys.executable, "-m", "pip", "--python", tmp_path / "venv/bin/python")
    run_clean(*pip, *CONSTRAINED, f"{wheel}[{extra}]", cwd=tmp_path)
    run_clean(*pip, "check", cwd=tmp_path)
    told = run_clean(tmp_path / "venv/bin/trainwright", "doctor", "--json", cwd=tmp_path)
    findings = json.loads(told.splitlines()[-1])["findings"]
    states = {one["name"]: one["state"] for one in findings if one["area"] == "extras"}
    absent = [name for name, state in states.items() if state != "fine"]
    assert extra not in absent
    assert extra != "all" or absent == ["demo"]
    shutil.rmtree(tmp_path / "venv")  # up to 2 GB


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("python", PYTHONS)
def test_the_wheel_runs_a_study_on_each_python(python, wheel, tmp_path):
    """On every interpreter that is found: the core alone runs the first example of the documentation."""
    run_clean(python, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    run_clean(tmp_path / "venv/bin/python", "-m", "pip", *CONSTRAINED, wheel, cwd=tmp_path)
    [script, *_] = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/index.md").read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "first.py").write_text(script)
    assert "loss" in run_clean(tmp_path / "venv/bin/python", "first.py", cwd=tmp_path)
