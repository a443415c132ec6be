"""The pipe between a benchmark and a peer's process."""

import pytest
from benchmarks.peers.client import METHODS, Peer, PeerFailed, missing
from benchmarks.peers.columns import Column

COLUMNS = (
    Column(name="lr", kind="log_float", low=1e-5, high=1e-1),
    Column(name="momentum", kind="float", low=0.0, high=1.0),
    Column(name="depth", kind="int", low=1, high=4),
    Column(name="width", kind="ordinal", values=(8, 16, 32)),
    Column(name="act", kind="choice", values=("relu", "tanh")),
)


# A process and 56 asks each: one peer of each kind is fast; those of other packages are there only after `make peers`.
FAST = {"random", "default", "several-forest"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in METHODS]
)
def test_asks_stay_inside_the_columns_and_a_reopened_search_repeats_itself(name: str):
    if missing(name) is not None:
        pytest.skip(missing(name))
    if name == "deephyper-default":
        pytest.skip("two seconds an ask")
    with Peer(name) as peer:
        runs = []
        for _ in range(2):
            version = peer.open(COLUMNS, seed=3)
            peer.load([[1e-3, 0.5, 2, 1, 0]] * 3, [1.0, 2.0, 3.0])
            rows = []
            for step in range(14):
                tokens, asked, seconds = peer.ask(2)
                assert len(tokens) == len(asked) == 2
                assert seconds >= 0
                peer.tell(tokens, [float(step), abs(asked[1][1] - 0.3)])
                rows += asked
            runs.append((version, rows))
    assert runs[0] == runs[1]
    for lr, momentum, depth, width, act in runs[0][1]:
        assert 1e-5 <= lr <= 1e-1
        assert 0 <= momentum <= 1
        assert depth in {1, 2, 3, 4}
        assert width in {0, 1, 2}
        assert act in {0, 1}


def test_a_child_that_ends_is_told_apart_from_an_answer():
    peer = Peer("random")
    with pytest.raises(PeerFailed, match="random: the child ended"):
        peer.ask()
    peer.close()
