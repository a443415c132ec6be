"""How kernels are compiled, and that they compute the same where numba is not installed."""

import json
import subprocess
import sys
from pathlib import Path

import numba

from trainwright import kernels

TESTS = Path(__file__).parent
WITHOUT_NUMBA = """
import importlib.util, sys
for name in ("numba", "llvmlite"):
    sys.modules[name] = None
known = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in {"numba", "llvmlite"} else known(name, *rest)
"""

DECISIONS = """
import json
import numpy as np
import trainwright as tw
from memory_chains import random_chain
from trainwright.plan.memory.planning import minimal_bytes, plan_chain
from trainwright.search.bayes.dominance import dominated_shares

space = tw.Space(x=tw.Float(0, 1), n=tw.Int(1, 9), c=tw.Choice("a", "b", "d"))
study = tw.Study(space, "min loss", seed=3, searcher=tw.ForestSearcher())
configurations = []
for _ in range(9):
    configurations.append(asked := study.ask())
    study.tell(asked, loss=(asked["x"] - 0.4) ** 2 + asked["n"] * (asked["c"] == "a"))
chain = random_chain(5, least=6, most=6, options=2)
least = minimal_bytes(chain)
plans = [plan_chain(chain, budget=int(least * more)) for more in (1.0, 1.2)]
draws = np.random.default_rng(0)
print(json.dumps({
    "asked": [dict(each) for each in configurations],
    "plans": [[str(operation) for operation in plan.operations] for plan in plans],
    "shares": dominated_shares(draws.random((9, 2))).tolist(),
}))
"""


def decisions(code):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=TESTS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_decisions_are_the_same_without_numba():
    """The forest's proposals, plans within a budget and ranks, to the last bit."""
    assert decisions(WITHOUT_NUMBA + DECISIONS) == decisions(DECISIONS)


def test_kernels_work_where_no_cache_can_be_written(monkeypatch):
    """Numba refuses to cache when it finds no folder; the kernel is compiled all the same."""
    real = numba.njit

    def refusing(*functions, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(*functions, **options)

    monkeypatch.setattr(numba, "njit", refusing)
    assert kernels.compiled(lambda x: x + 1)(1) == 2
