"""Install the peers, each into an environment of its own under `.peers/`; run again, it does only what is missing.

python benchmarks/peers/install.py [NAME ...]
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.peers.client import ENVIRONMENTS, ROOT, python_of

__all__ = ["main"]

_INSTALLED = """
import sys
from importlib.metadata import version
sys.exit(any(version(pin.split("==")[0]) != pin.split("==")[1] for pin in sys.argv[1:]))
"""


def main(names: list[str]) -> None:
    """Make the environments named, or all."""
    for name in names or list(ENVIRONMENTS):
        if name not in ENVIRONMENTS:
            raise SystemExit(f"{name!r} is no peer; known are {', '.join(ENVIRONMENTS)}")
        python, pins = python_of(name), ENVIRONMENTS[name]
        if _runs([str(python), "-c", _INSTALLED, *pins]):
            print(f"{name}: {', '.join(pins)} is there")
            continue
        subprocess.run([sys.executable, "-m", "venv", str(ROOT / ".peers" / name)], check=True)
        # One after the other, with its programs on the path: a pin may need an earlier one to compile.
        path = os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])
        for pin in pins:
            command = [str(python), "-m", "pip", "install", "--quiet", pin]
            subprocess.run(command, check=True, env={**os.environ, "PATH": path})
        print(f"{name}: {', '.join(pins)} installed")


def _runs(command: list[str]) -> bool:
    try:
        return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
