"""The commands by which a page installs the package work as they stand, with the pip that a new environment has."""

import os
import re
import shutil
import subprocess

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
