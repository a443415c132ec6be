"""Architectures as their packages define them are fitted and train as they do by themselves."""

import pytest
from benchmarks.memory.models import SHARE, check_model

HERE = ["nanoGPT", "nanoGPT with autocast inside", "torch TransformerEncoder", "torch Transformer", "torch LSTM layers"]
ELSEWHERE = ["GPT2", "Llama", "ALBERT", "T5", "CLIP", "Swin"]


SLOW = {"nanoGPT", "torch TransformerEncoder", "GPT2", "CLIP"}  # whose blocks another of these has too


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in (*HERE, *ELSEWHERE)]
)
def test_models(name):
    """Within 60 % of the plain peak, bit by bit."""
    if name in ELSEWHERE:
        pytest.importorskip("transformers")
    row = check_model(name)
    assert "missing" not in row, row
    assert not row["failure"], row
    assert row["equal"]
    assert row["kept"]
    assert row["reruns"]
    assert row["budget_share"] <= SHARE
