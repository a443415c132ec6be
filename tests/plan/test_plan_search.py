"""The search: equal to trying everything, whatever is pruned, in any order."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from oracle_cases import make_cluster, make_convolutions, make_transformer

from trainwright.errors import InputError
from trainwright.plan import Degrees, Oracle
from trainwright.plan.parallel.candidates import CHUNKS, MODES, shapes
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.pricing import Pricer
from trainwright.plan.parallel.search import bounds_of, search
from trainwright.plan.parallel.strategies.registry import AXES
from trainwright.plan.plan_query import PlanQuery


def estimates(oracle, profile, *, batch, devices, precision, axes):
    """Estimate every plan there is by the public function that knows nothing of a search."""
    found = []
    numbers = range(1, devices + 1)
    for chosen in product(numbers, repeat=len(axes)):
        degrees = Degrees(**dict(zip(axes, chosen, strict=True)))
        if degrees.devices > devices or batch % (degrees.data * degrees.expert):
            continue
        own = batch // (degrees.data * degrees.expert)
        sequences = (False, True) if degrees.tensor > 1 else (False,)
        for micro in (each for each in range(1, own + 1) if own % each == 0):
            for zero, sequence, chunks, recompute in product(
                range(4 if degrees.data > 1 else 1), sequences, CHUNKS, ("none", "selective", "full")
            ):
                if chunks > 1 and (degrees.pipeline == 1 or own // micro % degrees.pipeline):
                    continue
                choice = {"zero": zero, "sequence": sequence, "chunks": chunks, "recompute": recompute}
                try:
                    plan = oracle.estimate(
                        profile, batch=batch, degrees=degrees, micro=micro, precision=precision, **choice
                    )
                except InputError:
                    continue
                found.append(plan)
    return found


CASES = [
    # Small ones, for everything is tried; a larger one is among the slow tests.
    (make_transformer(layers=2), ("tensor", "data", "pipeline"), 2, 4),
    pytest.param(make_transformer(layers=3), ("tensor", "context", "data", "pipeline"), 8, 8, marks=pytest.mark.slow),
    (make_convolutions((3, 8, 8), 8), ("filter", "data", "pipeline"), 2, 6),
    (make_convolutions((3, 8, 8), 4), ("channel", "spatial", "data"), 2, 4),
]


@pytest.mark.parametrize(("profile", "axes", "batch", "devices"), CASES)
def test_equals_trying_everything(profile, axes, batch, devices):
    """For every strategy the plan that is found has the time of the best of all, also where memory is short."""
    oracle = Oracle(make_cluster(2, 4))
    every = estimates(oracle, profile, batch=batch, devices=devices, precision="fp32", axes=axes)
    names = ("data", "zero1", "zero2", "fsdp", *axes)
    for limit in (1e12, np.median([plan.peak_bytes for plan in every])):
        ranking = oracle.rank(
            profile, batch=batch, devices=devices, strategies=names, max_memory_bytes=limit, also=("sequence",)
        )
        best = {}
        for plan in every:
            seconds = plan.seconds_per_iteration if plan.peak_bytes <= limit else np.inf
            best[plan.strategy] = min(best.get(plan.strategy, np.inf), seconds)
        found = {plan.strategy: plan.seconds_per_iteration for plan in ranking}
        assert found == {name: pytest.approx(value, rel=1e-9) for name, value in best.items() if value < np.inf}
        refused = {each.strategy for each in ranking.rejected}
        assert {name for name, value in best.items() if value == np.inf} <= refused
        assert [plan.seconds_per_iteration for plan in ranking] == sorted(found.values())


def test_the_order_of_candidates_does_not_matter():
    """Shapes in any order give the same plans."""
    profile, cluster = make_transformer(layers=3), make_cluster(2, 4)
    request = PlanQuery(cluster=cluster, batch=8, devices=8)
    work = ModelArrays(profile, request.plan_precision)
    pricer = Pricer(work, cluster, request.plan_optimizer, most_parts=work.runs)
    given = shapes(work, request)
    turned = replace(given, mesh=given.mesh.take(np.random.default_rng(0).permutation(given.mesh.rows)))

    def content(some):
        found = search(pricer, some, request)
        return {(each.mode, each.axes): (each.score, each.order) for each in found}

    assert content(given) == content(turned)


def test_bounds_are_bounds():
    """No candidate takes less, or needs less, than the bound of its shape."""
    profile, cluster = make_transformer(layers=5, tied=False), make_cluster(2, 4)
    request = PlanQuery(cluster=cluster, batch=8, devices=8)
    work = ModelArrays(profile, request.plan_precision)
    pricer = Pricer(work, cluster, request.plan_optimizer, most_parts=work.runs)
    mesh = shapes(work, request).mesh
    bounds = bounds_of(pricer, mesh)
    data, tensor = mesh.axis("data"), mesh.axis("tensor") > 1
    for zero, (number, (sequence, recompute)) in product(range(4), enumerate(bounds.choices)):
        choice = replace(
            mesh,
            zero=np.where(data > 1, zero, 0),
            shard=data if zero else np.ones_like(data),
            sequence=tensor & sequence,
            recompute=np.full(mesh.rows, recompute),
        )
        prices = pricer.price(choice)
        possible = tensor if sequence else np.ones_like(tensor)
        assert (bounds.seconds[number] < np.inf).tolist() == possible.tolist()
        assert (prices.total >= bounds.seconds[number])[possible].all()
        assert (prices.memory.peak >= bounds.sizes(zero, choice.shard)[number])[possible].all()
    assert {recompute for _, recompute in bounds.choices} == {0, 1, 2}


def test_modes_and_axes_are_all_named():
    """Every strategy that a name can ask for is searched."""
    names = {plan.strategy for plan in Oracle(make_cluster(2, 4)).rank(make_transformer(), batch=8)}
    assert {"serial", "tensor", "context", "pipeline", *MODES} <= names
    assert {part for name in names for part in name.split("+")} <= {"serial", *MODES, *(axis.name for axis in AXES)}
