"""Flags: set back to what they were, through all of torch's ways to set them; what cannot be set is told."""

import json
import random

import pytest
import torch

from trainwright.checkpoint.state.differences import Effect
from trainwright.checkpoint.state.flags import capture_flags, compare_flags, restore_flags


@pytest.fixture(autouse=True)
def _put_back():
    before = capture_flags()
    yield
    assert restore_flags(before) == []


def test_flags_are_plain():
    assert json.loads(json.dumps(capture_flags())) == capture_flags()


def test_flags_are_set():
    saved = capture_flags()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    torch.set_num_threads(3)
    torch.set_default_dtype(torch.float64)
    torch.set_autocast_dtype("cpu", torch.float16)
    changed = capture_flags()
    names = {difference.item for difference in compare_flags(saved, changed)}
    assert {"flags.threads", "flags.default_dtype", "flags.autocast.cpu", "flags.cudnn.benchmark"} <= names
    assert restore_flags(saved) == []
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (saved["threads"], torch.float32)
    assert not torch.are_deterministic_algorithms_enabled()
    assert restore_flags(changed) == []
    assert capture_flags() == changed


def test_switches_of_tf32_in_any_order():
    """They hang together, in torch's older and newer names; each reachable setting is reached again."""
    draw = random.Random(0)
    before = capture_flags()
    for _ in range(60):
        for _ in range(draw.randrange(1, 5)):
            way = draw.choice([matmul_precision, cudnn, matmul, everywhere])
            way(draw)
        wanted = capture_flags()
        assert restore_flags(before) == []
        assert restore_flags(wanted) == []
        assert restore_flags(before) == []


def matmul_precision(draw):
    torch.set_float32_matmul_precision(draw.choice(["high", "highest", "medium"]))


def cudnn(draw):
    torch.backends.cudnn.allow_tf32 = draw.choice([True, False])


def matmul(draw):
    torch.backends.cuda.matmul.fp32_precision = draw.choice(["none", "ieee", "tf32"])


def everywhere(draw):
    torch.backends.fp32_precision = draw.choice(["none", "ieee", "tf32"])


def test_the_hash_seed_cannot_be_set(monkeypatch):
    """Python reads it once, at its start; so it is told, in best-effort and exact restores alike."""
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    saved = capture_flags()
    monkeypatch.setenv("PYTHONHASHSEED", "8")
    (difference,) = restore_flags(saved)
    assert (difference.item, difference.saved, difference.now) == ("flags.hash_seed", "7", "8")
    assert difference.effect is Effect.DRAWS


def test_flags_of_other_versions_are_passed_over():
    """A flag that only an older or newer version knows is no difference."""
    assert restore_flags(capture_flags() | {"of tomorrow": 1}) == []
