"""Values that skip stages: counted by hand and by a second count, their records as JSON, plans within the budget."""

from dataclasses import replace

import numpy as np
import pytest

from memory_chains import random_chain
from trainwright.errors import ChainError, PipelineError
from trainwright.memory import Chain, Link, Plan, Stage, plan
from trainwright.model.chain import Skip
from trainwright.plan.memory.exact import solve_exact
from trainwright.plan.memory.minimum_budget import lowest_plan
from trainwright.plan.memory.operations import OperationKind, Value, parse_operation
from trainwright.plan.memory.planning import full_bytes, minimal_bytes
from trainwright.plan.memory.simulate import simulate
from trainwright.plan.pipeline.planning import plan_pipeline

FORWARDS = {OperationKind.FORWARD_ALL, OperationKind.FORWARD_KEEP, OperationKind.FORWARD_DROP}


def stage(out, saved, **more):
    return Stage(forward_seconds=1.0, backward_seconds=1.0, output_bytes=out, saved_bytes=saved, **more)


def chain_with(**skip):
    stages = (stage(1, 1, forward_temporary_bytes=100), stage(1, 1), stage(1, 1), stage(1, 1))
    return Chain(stages=stages, skips=(Skip(maker=1, value_bytes=100, **skip),))


def skipped(chain, text, **settings):
    """Return the bytes that skip stages after each operation that changes them."""
    found = simulate(chain, [parse_operation(each) for each in text.split(";")], **settings)
    assert found.fits
    sizes = [point.skip_bytes for point in found.points]
    return [after for before, after in zip([0, *sizes], sizes, strict=False) if before != after]


KEPT = "Fall 1; Fall 2; Fall 3; Fall 4; Fall 5; B 5; B 4; B 3; B 2; B 1"
AGAIN = (
    "Fck 1; Fdrop 2; Fdrop 3; Fall 4; Fall 5; B 5; B 4; Del a3; Fck 1; Fall 2; Fall 3; B 3; B 2; Del a1; Fall 1; B 1"
)


def test_alive_until_its_last_reader_or_with_a_graph_that_holds_it():
    assert skipped(chain_with(readers=(3,)), KEPT) == [100, 0]
    found = simulate(chain_with(readers=(3,)), [parse_operation(each) for each in KEPT.split(";")])
    assert found.points[1].temporary_bytes == 100  # while it is made
    held = simulate(chain_with(readers=(3,), holders=(3,)), [parse_operation(each) for each in KEPT.split(";")])
    ends = [max(point.seconds for point in each.points if point.skip_bytes) for each in (found, held)]
    assert ends == [2.0, 5.0]  # when stage 3 begins forward, and backward
    assert "values that skip stages" in dict(held.peak_owners)


def test_made_again_it_need_not_wait():
    """Its reader runs again behind its maker; another reader that does so before it keeps the first value."""
    assert skipped(chain_with(readers=(3,)), AGAIN) == [100, 0, 100, 0]
    early = AGAIN.replace("B 4; Del a3; Fck 1; Fall 2", "B 4; Del a3; Fall 2").replace("Fdrop 2", "Fck 2").replace(
        "Del a1; Fall 1", "Fall 1"
    ).replace("B 2; Fall 1; B 1", "B 2; Del a1; Fall 1; B 1")  # fmt: skip
    assert skipped(chain_with(readers=(3,)), early) == [100, 0]


def test_two_copies_where_a_graph_holds_the_first():
    """Reader 4 is kept with the first value, the maker runs again for reader 3."""
    assert skipped(chain_with(readers=(3, 4), holders=(4,)), AGAIN) == [100, 0, 100, 0]
    both = "Fck 1; Fdrop 2; Fall 3; Fall 4; Fall 5; B 5; B 4; Fck 1; Fall 2; Del a1; Fall 1; B 3; B 2; B 1"
    assert skipped(chain_with(readers=(3,), holders=(1, 3)), both) == [100, 200, 100, 0]


def test_what_is_in_the_makers_output_counts_once():
    chain = Chain(
        stages=(stage(100, 130), stage(1, 1), stage(1, 1), stage(1, 1)),
        skips=(Skip(maker=1, readers=(3,), value_bytes=100, shared_bytes=100),),
    )
    again = "Fck 1; Fdrop 2; Fall 3; Fall 4; Fall 5; B 5; B 4; Fck 1; Fall 2; B 3; B 2; Del a1; Fall 1; B 1"
    assert skipped(chain, again) == [100, 0]
    # On its way to the host, what a rerun will read stays behind.
    text = (
        "Fck 1; Off a1; Fck 2; Fck 3; Fall 4; Fall 5; B 5; B 4; Del a3; Fall 3; B 3; Del a2; Pre a1; Fall 2; B 2; "
        "Del a1; Fall 1; B 1"
    )
    link = Link(to_host=1000, to_device=1000)
    assert skipped(chain, text, link=link) == [100, 0]


def test_chain_files(tmp_path):
    chain = chain_with(name="level", readers=(3, 4), holders=(1,))
    assert chain.digest != replace(chain, skips=()).digest
    chain.save(tmp_path / "chain.json")
    assert Chain.load(tmp_path / "chain.json") == chain
    made = plan(chain, budget=minimal_bytes(chain))
    made.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").simulation == made.simulation


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"maker": 5}, "skip 1, maker: got 5; allowed: a stage of 1 to 4"),
        ({"readers": [1]}, "skip 1, readers: got 1; allowed: a stage of 2 to 5"),
        ({"readers": []}, "at least one stage, in order"),
        ({"readers": 3}, "readers: got 3; allowed: a list"),
        ({"holders": [2]}, "holders: got 2; allowed: a stage of 1, 3"),
        ({"value_bytes": -1}, "value_bytes: got -1"),
        ({"shared_bytes": 9}, "shared_bytes: got 9; allowed: at most 1"),
        ({"size": 9}, "got the field 'size'"),
    ],
)
def test_bad_records(changed, said):
    content = chain_with(readers=(3,)).to_json()
    content["skips"][0] |= changed
    with pytest.raises(ChainError, match=said):
        Chain.from_json(content)


def test_pipelines_refuse_them():
    with pytest.raises(PipelineError, match="skip stages"):
        plan_pipeline(chain_with(readers=(3,)), stages=2, microbatches=2, memory_bytes=1000)


def random_skips(seed):
    """Draw a random chain, and one or two values that skip some of it."""
    chain, rng = random_chain(seed, least=5, most=9), np.random.default_rng(seed)
    skips = []
    for _ in range(rng.integers(1, 3)):
        maker = int(rng.integers(1, len(chain.stages) - 2))
        later = range(maker + 2, len(chain.stages) + 1)
        readers = tuple(sorted({int(each) for each in rng.choice(later, size=2)}))
        holders = tuple(each for each in (maker, *readers) if rng.random() < 0.4)
        size = int(rng.integers(1, 7))
        shared = min(size, chain.stages[maker - 1].output_bytes) if rng.random() < 0.3 else 0
        skips.append(Skip(maker=maker, readers=readers, value_bytes=size, shared_bytes=shared, holders=holders))
    return replace(chain, skips=tuple(skips))


def second_count(skip, operations):
    """Count the bytes of a value after each operation anew, from all that comes before and after it."""

    def runs(numbers, upto):
        return [at for at in range(upto) if operations[at].kind in FORWARDS and operations[at].stage in numbers]

    made = runs((skip.maker,), len(operations))
    first = {reader: runs((reader,), len(operations))[0] for reader in skip.readers}
    read = dict.fromkeys(first.values(), made[0])  # the place where it was made
    for at in runs(skip.readers, len(operations)):
        if at not in read:
            read[at] = max(each for each in made if each < at)
    sizes = []
    for now in range(len(operations)):
        copies = {source for at, source in read.items() if source <= now < at}
        outputs = set()
        for number in {skip.maker, *skip.readers}:
            for value in (Value.OUTPUT, Value.SAVED):
                alive = None
                for at, each in enumerate(operations[: now + 1]):
                    saves = each.kind is OperationKind.FORWARD_ALL
                    if each.kind in FORWARDS and each.stage == number and saves == (value is Value.SAVED):
                        alive = at
                    gone = each.kind is OperationKind.DELETE and (each.stage, each.value) == (number, value)
                    gone |= each.kind is OperationKind.BACKWARD and each.stage == number and value is Value.SAVED
                    gone |= (
                        each.kind is OperationKind.FORWARD_DROP and each.stage == number + 1 and value is Value.OUTPUT
                    )
                    alive = None if gone else alive
                if alive is not None and value is Value.SAVED and number in skip.holders:
                    copies.add(alive if number == skip.maker else read[alive])
                if alive is not None and number == skip.maker:
                    outputs.add(alive)
        sizes.append(sum(skip.value_bytes - skip.shared_bytes * (copy in outputs) for copy in copies))
    return sizes


@pytest.mark.parametrize("seed", range(3))
def test_plans_keep_the_budget_by_a_second_count(seed):
    """What the simulator counts is what was read off the list anew; plans keep budgets down to the least."""
    chain = random_skips(seed)
    full, least = full_bytes(chain), minimal_bytes(chain)
    assert lowest_plan(chain)[1] >= least
    for budget in (least, (least + full) // 2):
        found = plan(chain, budget=budget, solver="dp", slots=50)
        assert found.peak_bytes <= budget
        assert found.lower_seconds <= found.seconds
        operations = found.operations
        counted = np.sum([second_count(skip, operations) for skip in chain.skips], axis=0)
        ends = {span.operation: span.end_seconds for span in found.simulation.spans}
        for place, operation in enumerate(operations):
            if operation.value is None:
                after = [p.skip_bytes for p in found.simulation.points if p.seconds <= ends[place]]
                behind = place + 1 < len(operations) and operations[place + 1].value is not None
                assert behind or after[-1] == counted[place] or counted[place] in after


def test_bounds_hold_without_the_values():
    """The exact search's bound is of the chain without them: never above the plan's seconds."""
    chain = random_skips(3)
    least = minimal_bytes(chain)
    searched = solve_exact(chain, least)
    found = plan(chain, budget=least)
    assert searched.lower_seconds <= found.seconds
    assert found.lower_seconds <= found.seconds
