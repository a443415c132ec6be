"""Modules that ranks have parts of: who holds what, trees united and cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.checkpoint.ranks.merging import PipelineParts

NAMES = [f"model.{number}.weight" for number in range(6)]


def tree_of(names):
    """Return trees as a rank with these tensors has them; its optimizer has two groups."""
    groups = [[name for name in names if int(name.split(".")[1]) % 2 == rest] for rest in range(2)]
    return {
        "model": {name.removeprefix("model."): {"$tensor": name} for name in names},
        "optimizer": {
            "state": {name: {"step": {"$tensor": f"optimizer.state.{name}.step"}} for name in names},
            "param_groups": [{"lr": 0.1, "betas": {"$tuple": [0.9, 0.9]}, "params": group} for group in groups],
        },
        "loader": {"epoch": 3},
    }


@given(st.lists(st.sets(st.sampled_from(NAMES)), min_size=1, max_size=4).map(lambda sets: [*sets, set(NAMES)]))
def test_what_is_united_is_cut_again(held):
    """Whatever each rank holds: of the whole each finds its own, and what all hold is nobody's part."""
    names = [sorted(own) for own in held]
    ranks = [PipelineParts.of(names, rank, {"model", "optimizer"}) for rank in range(len(names))]
    trees = [tree_of(own) for own in names]
    own = {f"{item}@{rank}": value for rank, tree in enumerate(trees) if rank for item, value in tree.items()}
    whole = ranks[0].unite_trees(
        trees[0] | {item: value for item, value in own.items() if not item.startswith("loader")}
    )
    if ranks[0].holders:
        assert whole["model"] == tree_of(NAMES)["model"]
        assert whole["optimizer"]["state"] == tree_of(NAMES)["optimizer"]["state"]
        assert whole.keys() == trees[0].keys()
    for parts, tree in zip(ranks, trees, strict=True):
        cut = parts.cut(whole)
        assert cut["model"] == tree["model"]
        assert cut["optimizer"]["state"] == tree["optimizer"]["state"]
        for found, expected in zip(cut["optimizer"]["param_groups"], tree["optimizer"]["param_groups"], strict=True):
            assert {**found, "params": sorted(found["params"])} == expected


def test_an_optimizers_tensors_are_where_their_parameter_is():
    parts = PipelineParts.of([["model.a", "model.b"], ["model.a"]], 1, {"model", "optimizer"})
    assert parts.holding("model.b") == parts.holding("optimizer.state.model.b.exp_avg") == (0,)
    assert parts.holding("optimizer.state.model.a.exp_avg") is None
    assert [parts.here(name) for name in ("model.a", "model.b", "optimizer.state.model.b.step")] == [True, False, False]


@pytest.mark.parametrize("world", [1, 3])
def test_where_all_have_all_nothing_is_a_part(world):
    parts = PipelineParts.of([NAMES] * world, 0, {"model"})
    tree = tree_of(NAMES)
    assert parts.unite_trees(tree) == parts.cut(tree) == tree
