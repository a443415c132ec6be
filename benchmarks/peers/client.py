"""The benchmark's side of a peer: starts the child in the peer's own environment and speaks JSON lines with it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.peers.columns import Column

__all__ = ["ENVIRONMENTS", "METHODS", "TOLD_THE_BUDGET", "Peer", "PeerFailed", "missing", "python_of"]

ROOT = Path(__file__).resolve().parents[2]

# What `make peers` installs, one environment each, because peers pin packages that fight each other.
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "optuna": ("optuna==5.0.0", "redis==7.1.0", "cmaes==0.13.1"),
    "optuna-gp": ("optuna==5.0.0", "torch==2.13.0", "scipy==1.17.1"),
    "deephyper": ("deephyper==0.13.2",),
    "ray-tune": (
        "ray==2.60.0",
        "fsspec==2026.9.0",
        "pydantic==2.14.3",
        "pandas==3.1.1",
        "pyarrow==26.0.1",
        "tensorboardX==2.6.5",
    ),
    "smac": ("swig==4.4.1", "smac==2.4.1"),  # swig compiles the forest that SMAC needs
    "syne-tune": ("syne-tune[gpsearchers]==0.13.0",),  # the last with MOBSTER and DyHPO
}

# A searcher's name on the command line -> the environment (empty: this Python) and the method that the child serves.
METHODS: dict[str, tuple[str, str]] = {
    "default": ("", "trainwright-default"),
    "forest": ("", "trainwright-forest"),
    "quasirandom": ("", "trainwright-quasirandom"),
    "own-random": ("", "trainwright-random"),
    "gp": ("", "trainwright-gp"),
    "botorch": ("", "trainwright-botorch"),
    "evolution": ("", "trainwright-evolution"),
    "plain-ucb": ("", "trainwright-plain-ucb"),
    "liar": ("", "trainwright-liar"),
    "forest-team": ("", "trainwright-forest-team"),
    "random": ("", "random"),
    "optuna-tpe": ("optuna", "optuna-tpe"),
    "optuna-tpe-categorical": ("optuna", "optuna-tpe-categorical"),
    "optuna-gp": ("optuna-gp", "optuna-gp"),
    "optuna-cmaes": ("optuna", "optuna-cmaes"),
    "smac": ("smac", "smac"),
    "deephyper": ("deephyper", "deephyper"),
    "deephyper-values": ("deephyper", "deephyper-values"),
    "deephyper-default": ("deephyper", "deephyper-default"),
    "tpe+hyperband": ("optuna", "trials_optuna-hyperband"),
    "tpe+median": ("optuna", "trials_optuna-median"),
    "smac+hyperband": ("smac", "trials_smac-hyperband"),
    "mobster": ("syne-tune", "trials_synetune-mobster"),
    "dyhpo": ("syne-tune", "trials_synetune-dyhpo"),
    "several-forest": ("", "several_own-forest"),
    "several-default": ("", "several_own-default"),
    "several-botorch": ("", "several_own-botorch"),
    "several-random": ("", "several_own-random"),
    "several-nsga2": ("optuna", "several_optuna-nsga2"),
    "several-tpe": ("optuna", "several_optuna-tpe"),
    "several-deephyper": ("deephyper", "several_deephyper-linear"),
    "several-deephyper-chebyshev": ("deephyper", "several_deephyper-chebyshev"),
}

# SMAC sizes its initial design by the number of evaluations; nobody else is told it.
TOLD_THE_BUDGET = frozenset({"smac"})

# One thread each: a benchmark compares algorithms, not how many cores a library grabs.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS"), "1"
)


class PeerFailed(RuntimeError):
    """A child ended or answered what is no answer; its own words are on the error stream."""


def missing(name: str) -> str | None:
    """Say why a searcher cannot run here, or None."""
    environment = METHODS[name][0]
    if environment and not python_of(environment).exists():
        return f"no .peers/{environment}; `make peers` installs it"
    return None


def python_of(environment: str) -> Path:
    """Name the Python of a peer's environment, there or not; this one if unnamed."""
    return ROOT / ".peers" / environment / "bin" / "python" if environment else Path(sys.executable)


class Peer:
    """A running child. `open` starts a new search in it, so that imports and compilation are paid once."""

    def __init__(self, name: str, *, one_thread: bool = True) -> None:
        environment, method = METHODS[name]
        self.name = name
        path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        self._child = subprocess.Popen(
            [str(python_of(environment)), "-W", "ignore", "-m", "benchmarks.peers.child", method],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=ROOT,
            env={**os.environ, **(_ONE_THREAD if one_thread else {}), "PYTHONPATH": path},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def open(self, columns: Sequence[Column], seed: int, **options: Any) -> str:
        """Start a search; the answer names version and settings."""
        asked = {"do": "open", "columns": [column.json() for column in columns], "seed": seed, "options": options}
        return str(self._call(asked)["version"])

    def load(self, rows: Sequence[Sequence[float]], losses: Sequence[float]) -> None:
        """Give finished trials without asking for them."""
        self._call({"do": "load", "rows": [list(row) for row in rows], "losses": list(losses)})

    def ask(self, count: int = 1) -> tuple[list[int], list[list[float]], float]:
        """Tokens, rows and the seconds that the peer took."""
        answer = self._call({"do": "ask", "count": count})
        return answer["tokens"], answer["rows"], answer["seconds"]

    def tell(self, tokens: Sequence[int], losses: Sequence[float]) -> float:
        """Tell losses; gives the seconds that the peer took."""
        return float(self._call({"do": "tell", "tokens": list(tokens), "losses": list(losses)})["seconds"])

    def start(self) -> tuple[int, list[float]] | None:
        """Return the trial that a free worker trains, new or paused, and its row; None at the end."""
        answer = self._call({"do": "start"})
        return None if answer["trial"] is None else (answer["trial"], answer["row"])

    def report(self, trial: int, epoch: int, loss: float) -> bool:
        """Tell the loss after an epoch; return whether the trial goes on at once."""
        return bool(self._call({"do": "report", "trial": trial, "epoch": epoch, "loss": loss})["goes_on"])

    def close(self) -> None:
        """End the child."""
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        self._child.wait(timeout=60)

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._child.stdin, self._child.stdout
        if stdin is None or stdout is None:
            raise PeerFailed(f"{self.name}: the child has no pipes")
        try:
            stdin.write(json.dumps(request) + "\n")
            answer = stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise PeerFailed(f"{self.name}: the child ended with {self._child.wait()} on {request['do']!r}")
        result: dict[str, Any] = json.loads(answer)
        return result
