"""What is ranked, runs: every plan of Hugging Face families that is called runnable trains as one process does."""

import pytest
from benchmarks.plan.families import FAMILIES, distance_from_serial, rank_family

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

# The benchmark `plan/ranked.py` runs all of them, on four ranks too.
SOME = tuple(name for name in FAMILIES if name not in {"mistral", "qwen2", "gemma", "phi"})
QUICK = ("gpt2", "mixtral", "qwen3")
KINDS = {
    "data": set(SOME),
    "pipeline": set(SOME),
    "context": set(SOME) - {"t5", "bloom"},
    "expert": {"mixtral", "granitemoe", "deepseek_v2"},
    "tensor": set(SOME),
}
"""Families that each strategy is set up for: neither more nor fewer than these."""


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FAMILIES if name in SOME]
)
def test_what_is_ranked_runs(family):
    ranking = rank_family(family, 2)
    runnable = [plan for plan in ranking if plan.devices == 2 and not plan.refusal]
    names = {plan.strategy for plan in runnable}
    assert {kind for kind in KINDS if kind in names} == {kind for kind, those in KINDS.items() if family in those}
    distances = distance_from_serial(family, runnable, 2)
    wrong = {
        plan.strategy: found
        for plan, found in zip(runnable, distances, strict=True)
        if isinstance(found, str) or found > 2e-5
    }
    assert wrong == {}
