"""What a compiled step saves: the sweep is that of a plain simulation, the search finds what all choices hold."""

import itertools

import numpy as np
import pytest

from trainwright.memory.saving import Step, choose, least


def step(sizes, seconds, *, pinned=(), scratch=0):
    """Return a chain of operations, each with a backward that reads its input, its output and a gradient."""
    length = len(sizes)
    # 0 is the batch, 1..L forward, L+1 the gradient that arrives, then backward from L down to 1
    reads = [[], *([place - 1] for place in range(1, length + 1)), []]
    for place in range(length, 0, -1):
        reads.append([place - 1, place, len(reads) - 1])
    count = len(reads)
    first = np.cumsum([0, *map(len, reads)])
    inputs = np.array([each for read in reads for each in read], np.int64)
    storage = np.array([-1, *range(count - 1)])
    kept = np.array([*sizes, sizes[-1], *(sizes[max(place - 2, 0)] for place in range(length, 0, -1))])
    ones = np.zeros(count, np.bool_)

    def at(*places):
        flags = ones.copy()
        flags[list(places)] = True
        return flags

    return Step(
        forward=length + 1,
        first=first,
        inputs=inputs,
        storage=storage,
        kept=kept,
        passing=kept,
        scratch=np.broadcast_to(scratch, count),
        seconds=np.array([0.0, *seconds, *np.zeros(length + 1)]),
        fixed=at(0, length + 1),
        pinned=at(*pinned),
        keepable=at(*range(1, length + 1)),
        trunk=at(*range(length + 1, count)),
        handed=at(length, count - 1),
    )


def simulated(chain, saved):
    """Return seconds and peak of a choice, by sets of what is alive."""
    reads = [chain.inputs[a:b] for a, b in itertools.pairwise(chain.first)]
    places = range(len(reads))
    order = []

    def run(node):
        if node in there:
            return
        there.add(node)
        for each in reads[node]:
            run(each)
        order.append(node)

    there = {node for node in places if chain.fixed[node] or (node < chain.forward and saved[node])}
    for node in places[chain.forward :]:
        run(node)
    wanted = {each for node in order for each in reads[node]}
    stays = {node for node in places[: chain.forward] if chain.handed[node] or (saved[node] and node in wanted)}
    sizes = {node: 0 if chain.storage[node] < 0 else chain.kept[chain.storage[node]] for node in places}
    peak, alive = 0, set()
    for node in places[1 : chain.forward]:
        alive |= {node}
        peak = max(peak, sum(sizes[each] for each in alive) + chain.scratch[node])
        later = {each for after in places[node + 1 : chain.forward] for each in reads[after]}
        alive = {each for each in alive if each in stays or each in later}
    alive |= {node for node in places[chain.forward :] if chain.fixed[node]}
    for place, node in enumerate(order):
        alive |= {node}
        peak = max(peak, sum(sizes[each] for each in alive) + chain.scratch[node])
        later = {each for after in order[place + 1 :] for each in reads[after]}
        alive = {each for each in alive if chain.handed[each] or each in later}
    return sum(chain.seconds[node] for node in order if node < chain.forward), peak


def chains():
    for seed in range(12):
        rng = np.random.default_rng(seed)
        length = int(rng.integers(3, 8))
        sizes, seconds = rng.integers(1, 9, length), rng.integers(1, 9, length).astype(float)
        yield step(sizes, seconds, scratch=rng.integers(0, 4, 2 * length + 2))


def all_choices(chain):
    for bits in itertools.product((False, True), repeat=len(chain.candidates)):
        saved = np.zeros(len(chain.storage), np.bool_)
        saved[chain.candidates] = bits
        yield saved


def test_the_sweep_is_a_plain_simulation():
    """Seconds and peak of every choice on small chains are those of sets of what is alive."""
    for chain in itertools.islice(chains(), 4):
        for saved in all_choices(chain):
            tried = chain.tried(saved)
            assert (tried.seconds, tried.peak_bytes) == simulated(chain, saved)


def test_the_search_finds_the_best_of_all_choices():
    """On small chains, at every limit that some choice keeps, the search finds the optimum, and `least` the least."""
    gaps = []
    for chain in chains():
        tried = [chain.tried(saved) for saved in all_choices(chain)]
        lowest = min(each.peak_bytes for each in tried)
        assert least(chain).peak_bytes == lowest
        for limit in sorted({each.peak_bytes for each in tried}):
            best = min(each.seconds for each in tried if each.peak_bytes <= limit)
            found = choose(chain, limit)
            assert found.peak_bytes <= limit
            gaps.append(found.seconds - best)
    assert min(gaps) == 0
    assert np.mean(np.array(gaps) > 0) < 0.02


def test_no_start_is_better_and_what_is_not_needed_is_not_saved():
    """A start that keeps the limit bounds the seconds; a limit that nothing keeps leaves an excess."""
    chain = step([4, 2, 8, 1, 5, 3], [1.0, 9.0, 2.0, 5.0, 1.0, 2.0])
    everything = np.ones(len(chain.storage), np.bool_)
    whole = chain.tried(everything)
    assert whole.seconds == 0
    assert not whole.saved[chain.forward :].any()
    assert choose(chain, whole.peak_bytes, [everything]).seconds == 0
    assert choose(chain, 1).excess > 0


@pytest.mark.parametrize("place", [2, 4])
def test_what_draws_is_never_run_again(place):
    """A pinned node is saved where it is needed, whatever was asked for."""
    chain = step([4, 2, 8, 1, 5, 3], [1.0, 9.0, 2.0, 5.0, 1.0, 2.0], pinned=[place])
    tried = chain.tried(np.zeros(len(chain.storage), np.bool_))
    assert tried.saved[place]
    assert not tried.again[place]
