"""Cuts against brute force on random graphs; periods and joined stages against their definitions."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from trainwright.model.chain import Stage
from trainwright.model.cut.cuts import Access, find_cuts, find_repeats, fold_blocks, intervals_between, join_stages
from trainwright.model.layer import Layer


@st.composite
def graphs(draw, most=10):
    """Random programs: each operation reads some storages that are there, writes into some of them, and makes one."""
    size = draw(st.integers(1, most))
    accesses = []
    for i in range(size):
        there = st.sampled_from(range(i + 1))
        reads = draw(st.frozensets(there, max_size=2)) if i else frozenset({0})
        writes = frozenset(x for x in reads if draw(st.integers(0, 4)) == 0)
        creates = frozenset() if draw(st.integers(0, 4)) == 0 else frozenset({i + 1})
        made = {0}.union(*(access.creates for access in accesses)) if accesses else {0}
        accesses.append(Access(reads & made, writes & made, creates))
    return accesses


def live_after(accesses, place, results):
    made = {0}.union(*(access.creates for access in accesses[: place + 1]))
    later = results.union(*(access.reads | access.writes for access in accesses[place + 1 :]))
    return made & later


def brute_force(accesses, results):
    found = []
    for place in range(len(accesses) - 1):
        live = live_after(accesses, place, results)
        written = set().union(*(access.writes for access in accesses[place + 1 :]))
        if len(live) == 1 and not live & written:
            found.append((place, *live))
    return [
        (place, storage) for place, storage in found if (place, storage) == max(f for f in found if f[1] == storage)
    ]


@given(graphs(), st.data())
def test_cuts_equal_brute_force(accesses, data):
    made = sorted({0}.union(*(access.creates for access in accesses)))
    results = data.draw(st.frozensets(st.sampled_from(made), min_size=1, max_size=2))
    touched = set().union(*(access.reads | access.writes | access.creates for access in accesses))
    assert find_cuts(accesses, results & touched) == brute_force(accesses, set(results & touched))


@given(graphs())
def test_ignored_storages_and_barred_places_make_no_cut(accesses):
    found = find_cuts(accesses, {len(accesses)})
    assert all(storage != 1 for _, storage in find_cuts(accesses, {len(accesses)}, ignored={1}))
    for place, _ in found:
        assert place not in {at for at, _ in find_cuts(accesses, {len(accesses)}, barred={place})}


def test_a_skip_leaves_no_cut_inside():
    """X -> a -> b -> a + b -> c: the sum is a cut, the two before it are not."""
    chain = [
        Access(frozenset({0}), creates=frozenset({1})),
        Access(frozenset({1}), creates=frozenset({2})),
        Access(frozenset({1, 2}), creates=frozenset({3})),
        Access(frozenset({3}), creates=frozenset({4})),
    ]
    assert find_cuts(chain, {4}) == [(0, 1), (2, 3)]
    assert intervals_between([0, 2], 4) == [(0, 0), (1, 2), (3, 3)]


@given(st.lists(st.integers(0, 2), max_size=20))
def test_periods_rebuild_the_sequence(sequence):
    rebuilt = [x for start, length, count in find_repeats(sequence) for x in sequence[start : start + length] * count]
    assert rebuilt == sequence


def test_periods_find_alternating_layers():
    assert find_repeats("eababababh") == [(0, 1, 1), (1, 2, 4), (9, 1, 1)]
    assert find_repeats("aaab") == [(0, 1, 3), (3, 1, 1)]


sizes = st.integers(0, 50)
stages = st.builds(
    Stage,
    name=st.just("s"),
    layers=st.just(1),
    forward_seconds=st.just(0.0),
    backward_seconds=st.just(0.0),
    output_bytes=sizes,
    saved_bytes=st.integers(50, 99),
    forward_temporary_bytes=sizes,
    no_grad_forward_temporary_bytes=sizes,
    backward_temporary_bytes=sizes,
    gradient_bytes=sizes,
)


@given(st.lists(stages, min_size=1, max_size=5), sizes)
def test_joined_bytes_are_those_of_the_stages_run_one_after_another(found, arriving):
    """Against a walk through the stages that adds and drops what lives."""
    block = join_stages(found, arriving)
    live, peak = 0, 0
    for stage in found:
        peak = max(peak, live + stage.saved_bytes + stage.forward_temporary_bytes)
        live += stage.saved_bytes
    assert block.saved_bytes == live
    assert block.saved_bytes + block.forward_temporary_bytes == max(peak, live)
    held, plain = 0, 0
    for stage in found:
        plain = max(plain, held + stage.output_bytes + stage.no_grad_temporary_bytes)
        held = stage.output_bytes
    assert block.output_bytes + block.no_grad_temporary_bytes == max(plain, held)
    before = [arriving, *(stage.gradient_bytes for stage in found)]
    backward = 0
    for i in reversed(range(len(found))):
        backward = max(backward, live + before[i + 1] + before[i] + found[i].backward_temporary_bytes)
        live -= found[i].saved_bytes
    charged = block.saved_bytes + block.gradient_bytes + arriving
    assert charged + block.backward_temporary_bytes == max(backward, charged)


@given(st.lists(st.tuples(stages, st.integers(0, 1)), min_size=1, max_size=6))
def test_folded_blocks_unfold_to_the_same_chain(found):
    """The stages and layers in order are those of the chain but for their names."""
    chain = [stage for stage, _ in found]
    layers = [[Layer(name=str(i), kind="other", input_elements=n, output_elements=1)] for i, (_, n) in enumerate(found)]

    def nameless(pairs):
        return [(replace(stage, name=""), replace(layer, name="")) for stage, layer in pairs]

    unfolded = [
        pair
        for block in fold_blocks(chain, layers)
        for _ in range(block.count)
        for pair in zip(block.stages, block.layers, strict=True)
    ]
    assert nameless(unfolded) == nameless((stage, layer) for stage, [layer] in zip(chain, layers, strict=True))
