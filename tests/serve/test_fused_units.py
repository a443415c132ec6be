"""Units of several members: fused kinds answer as the loop does, or are refused in one sentence."""

import sys
from pathlib import Path

import numpy as np
import pytest

from trainwright.ensemble import Ensemble
from trainwright.errors import ServeError
from trainwright.serve.runtime import member_runners as fused

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

import served_networks as networks  # noqa: E402


def told(ensemble, kind, batch=16, device="cpu"):
    """Return what a worker would be told."""
    return {
        "members": [
            {"folder": str(member.folder), "digests": dict(member.digests), "trial": member.trial}
            for member in ensemble.members
        ],
        "kind": kind,
        "device": device,
        "threads": torch.get_num_threads(),
        "batch": batch,
        "input_shape": [networks.INPUTS],
        "input_dtype": "float32",
    }


def close_to_members(runner, ensemble: Ensemble, wanted, rows=16):
    x = networks.inputs(rows, seed=3)
    found = dict(runner(x, wanted))
    assert list(found) == list(wanted)
    expected = list(ensemble._member_outputs(x, 512, "cpu"))
    for k in wanted:
        assert found[k].dtype == np.float64
        assert found[k].shape == expected[k].shape
        np.testing.assert_allclose(found[k], expected[k], atol=1e-6)


@pytest.mark.parametrize("kind", ["classes", "moments", "values"])
class TestOnTheProcessor:
    @pytest.mark.parametrize("unit", ["process", "loop", "vmap"])
    def test_same_answers(self, tmp_path, kind, unit):
        """Whatever the unit and whichever members are asked for, the predictions are those of the networks."""
        ensemble = networks.ensemble(tmp_path, [{}] * (1 if unit == "process" else 3), kind=kind)
        runner = fused.runner_of(told(ensemble, unit))
        close_to_members(runner, ensemble, range(len(ensemble.members)))
        close_to_members(runner, ensemble, [len(ensemble.members) - 1], rows=5)


class TestRefusals:
    def test_different_networks(self, tmp_path):
        ensemble = networks.ensemble(tmp_path, [{"hidden": 4}, {"hidden": 8}])
        with pytest.raises(ServeError, match=r"got 'vmap' for trials 10, 11, whose networks differ; .* use 'loop'"):
            fused.runner_of(told(ensemble, "vmap"))

    @pytest.mark.parametrize("kind", ["streams", "cuda_graph"])
    def test_kinds_of_accelerators(self, tmp_path, kind):
        ensemble = networks.ensemble(tmp_path, [{}, {}])
        with pytest.raises(ServeError, match=f"got '{kind}' on 'cpu'; allowed: a cuda device; use 'loop' or 'vmap'"):
            fused.runner_of(told(ensemble, kind))

    def test_data_dependent_network(self, tmp_path):
        """A network that looks at what it computed cannot be one of several in a batch."""
        ensemble = networks.ensemble(tmp_path, [{}] * 2, kind="fussy")
        with pytest.raises(ServeError, match=r"got 'vmap', which these networks do not allow .* use 'loop'"):
            fused.runner_of(told(ensemble, "vmap"))

    def test_other_answers(self, tmp_path, monkeypatch):
        """A fused kind that is off by more than rounding does not start."""
        ensemble = networks.ensemble(tmp_path, [{}, {}])

        class Off(fused.Vmap):
            def __call__(self, x, members):
                for k, found in super().__call__(x, members):
                    yield k, found + 1e-3 * k

        monkeypatch.setattr(fused, "Vmap", Off)
        with pytest.raises(ServeError, match=r"with which trial 11 answers otherwise than alone .by 0.001."):
            fused.runner_of(told(ensemble, "vmap"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("unit", ["loop", "vmap", "streams", "cuda_graph"])
def test_on_an_accelerator(tmp_path, unit):
    """The same answers on a CUDA device, for full and for padded batches."""
    ensemble = networks.ensemble(tmp_path, [{}] * 3)
    runner = fused.runner_of(told(ensemble, unit, device="cuda:0"))
    for rows in (16, 5, 1):
        x = networks.inputs(rows, seed=rows)
        found = dict(runner(x, [0, 1, 2]))
        for k, expected in enumerate(ensemble._member_outputs(x, 512, "cpu")):
            np.testing.assert_allclose(found[k], expected, atol=1e-5)
