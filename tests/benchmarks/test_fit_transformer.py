"""Seconds of transformer steps: what they must not do, small cases by hand, constants that a fit brings back."""

import numpy as np
import pytest
from benchmarks.plan.fit import fit_constants
from benchmarks.plan.fit_transformer import (
    COLUMNS,
    NETWORK_CONSTANTS,
    SERVER_CONSTANTS,
    TransformerSteps,
    transformer_seconds,
)

from trainwright.errors import InputError

VALUES = {constant.name: constant.start for constant in (*SERVER_CONSTANTS, *NETWORK_CONSTANTS)}
RUN = dict(zip(COLUMNS, (1, 16, 4, 2048, 16, 24, 1024, 1, 1, 1), strict=True))


def seconds(values=VALUES, *, recompute=False, **columns):
    """Return the seconds of one run."""
    columns = {name: [value] for name, value in (RUN | columns).items()}
    columns["devices"] = [columns["tensor"][0] * columns["data"][0] * columns["pipeline"][0]]
    return float(transformer_seconds(values, TransformerSteps(**columns, recompute=recompute))[0])


class TestShape:
    """How seconds change with what is asked for."""

    def test_grows_with_the_work(self):
        """More layers, wider ones, longer sequences, a larger batch take longer."""
        base = seconds()
        for name in ("layers", "hidden", "sequence", "batch"):
            assert seconds(**{name: 2 * RUN[name]}) > base

    def test_doubled_micro_batches_by_hand(self):
        """Slots of a serial run are independent: twice the batch adds as many seconds as the batch had slots."""
        once, twice, thrice = (seconds(batch=batch) for batch in (16, 32, 48))
        assert thrice - twice == pytest.approx(twice - once)

    def test_a_pipeline_fills(self):
        """A pipeline of p stages with S slots: (S + p - 1) / p times the blocks' seconds, sends and head apart."""
        free = VALUES | {"send_seconds": 0.0, "node_beta": 0.0, "overhead_seconds": 0.0, "logit_passes": 0.0}
        # Without vocabulary to speak of, what is left is blocks and their update.
        columns = {name: np.array([value, value], dtype=float) for name, value in RUN.items()}
        columns |= {"devices": np.array([1.0, 4.0]), "pipeline": np.array([1.0, 4.0])}
        serial, pipe = transformer_seconds(free, TransformerSteps(**columns, vocabulary=1))
        update = 28 * 12 * 2048**2 * 24 / free["memory_rate"]
        slots = 4
        assert (pipe - update / 4) / (serial - update) == pytest.approx((slots + 3) / (slots * 4), rel=1e-4)

    def test_recomputation_is_a_third_more(self):
        """A forward pass again: of three parts a fourth, where the device sets the pace."""
        heavy = VALUES | {"launch_seconds": 1e-4, "logit_passes": 1.0, "overhead_seconds": 1e-5}
        once, again = (seconds(heavy, recompute=flag, layers=200, hidden=8192) for flag in (False, True))
        assert again / once == pytest.approx(4 / 3, rel=0.02)

    def test_the_host_sets_the_pace_of_small_blocks(self):
        """Blocks that take less on the device than on the host cost what launching costs."""
        filling = VALUES | {"matrix_work": 1e7, "overhead_seconds": 1e-5}
        tiny, odd = (seconds(filling, hidden=128, heads=heads, sequence=32, micro=1, batch=1) for heads in (4, 2))
        assert tiny == pytest.approx(24 * VALUES["launch_seconds"], rel=0.1)
        assert odd - tiny == pytest.approx(24 * VALUES["unfused_seconds"], rel=0.1)

    def test_beyond_a_server(self):
        """Tensor ranks on several servers sum activations over the network, which takes longer."""
        slow = VALUES | {"network_shared_beta": 1e-9}
        assert seconds(slow, tensor=16) > 2 * seconds(slow, tensor=8)
        assert seconds({name: VALUES[name] for name in VALUES if "network" not in name}, tensor=8) == seconds(tensor=8)

    def test_fewer_tensor_ranks_send_more(self):
        """Between servers every tensor rank sends its part: eight send once what two send four times; not inside."""
        columns = {"batch": 64, "data": 16, "pipeline": 4}
        slots, size = 1, 2 * 4 * 1024 * 2048
        slow = VALUES | {"network_beta": 2e-9, "network_alpha": 1e-9}
        for tensor, replicas in ((2, 4), (8, 1)):
            more = seconds(slow, tensor=tensor, **columns) - seconds(
                VALUES | {"network_alpha": 1e-9}, tensor=tensor, **columns
            )
            gradients = 2 * 15 / 16 * 2 * (12 * 2048**2 * 24 / 4 + 51200 * 2048)
            sends = 2 * (slots + 3) * size * replicas
            assert more == pytest.approx((sends + gradients) * (2e-9 - VALUES["network_beta"]))


def test_a_fit_brings_the_server_back():
    """Runs timed on known constants are predicted by the fitted ones, also those that were not fitted on."""
    table = [
        (t * d * p, d * m * s, m, h, 16, layers, 1024, t, d, p)
        for h in (1024, 4096)
        for layers in (12, 24)
        for t, d, p in ((1, 1, 1), (1, 2, 1), (2, 1, 1), (4, 1, 2), (8, 1, 1), (1, 2, 4))
        for m, s in ((1, 4), (8, 2))
    ]
    runs = TransformerSteps(**dict(zip(COLUMNS, np.array(table, dtype=float).T, strict=True)))
    truth = VALUES | {"matrix_rate": 1.8e14, "memory_rate": 1e12, "launch_seconds": 2e-3, "node_beta": 1 / 100e9}
    measured = transformer_seconds(truth, runs)
    held = np.arange(len(table)) % 3 == 0
    fit = fit_constants(SERVER_CONSTANTS, lambda v: transformer_seconds(v, runs.take(~held)), measured[~held], starts=1)
    assert transformer_seconds(fit.values, runs.take(held)) == pytest.approx(measured[held], rel=0.02)


@pytest.mark.parametrize(
    ("change", "words"), [({"micro": [0.0]}, "micro"), ({"data": [2.0]}, "devices"), ({"layers": [1.0, 2.0]}, "layers")]
)
def test_bad_columns(change, words):
    """Numbers below 1, degrees that are no product, columns of other lengths are refused by name."""
    with pytest.raises(InputError, match=words):
        TransformerSteps(**({name: [float(value)] for name, value in RUN.items()} | change))
