"""Iterations of plans: the oracle's own list of exchanges and shares of work, ready for fitting a machine to them."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import fields
from math import prod

import numpy as np
from benchmarks.plan.fit_iteration import Exchange, Iteration

from trainwright.errors import InputError
from trainwright.model.profile import Profile
from trainwright.plan.forecast import Collective, Forecast
from trainwright.plan.layout import Degrees
from trainwright.plan.parallel.mesh import Mesh
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.precision import precision_of
from trainwright.plan.parallel.strategies.registry import AXES, STRATEGIES

__all__ = ["iteration_of"]


def iteration_of(
    profile: Profile,
    plan: Forecast,
    *,
    staged: Collection[str] = (),
    sample_bytes: float = 0.0,
    handed_on: bool = False,
) -> Iteration:
    """Return what an iteration of a plan is made of; `staged` axes exchange through host memory.

    Every layer of the profile needs its seconds. Raises `InputError` if one has none, or for a pipeline or several
    micro-batches, whose slots an `Iteration` does not know.
    """
    if plan.microbatches > 1 or plan.degrees.pipeline > 1:
        raise InputError(
            f"iteration_of: got {plan.microbatches} micro-batches and {plan.degrees.pipeline} stages; "
            "allowed: one of each"
        )
    untimed = [
        layer.name for layer in profile.layers if layer.forward_seconds is None or layer.backward_seconds is None
    ]
    if untimed:
        raise InputError(
            f"iteration_of: layer {untimed[0]!r} has no seconds; allowed: a measured profile "
            "(Profile.measured, or forward_seconds and backward_seconds of every layer)"
        )
    work = ModelArrays(profile, precision_of(plan.precision))
    degrees = np.array([[getattr(plan.degrees, degree.name) for degree in fields(Degrees)]], dtype=np.int64)
    mesh = Mesh.of(plan.batch, degrees, axes=AXES, micro=np.array([plan.micro_batch], dtype=np.int64))
    share = np.ones(len(work.layers))
    for strategy in STRATEGIES:
        if getattr(plan.degrees, strategy.axis.name) > 1 and strategy.axis.name != "data":
            share *= strategy.compute(work, mesh)[0]
    whole, divided = 0.0, defaultdict[str, float](float)
    for layer, count, part in zip(work.layers, work.counts[work.block], share, strict=True):
        seconds = int(count) * ((layer.forward_seconds or 0.0) + (layer.backward_seconds or 0.0)) / profile.batch
        if part < 1:
            divided[layer.kind] += seconds
        else:
            whole += seconds
    replicas = plan.degrees.data * plan.degrees.expert
    return Iteration(
        devices=plan.devices,
        samples=plan.batch / replicas,
        parts=plan.devices // replicas,
        whole_seconds=whole,
        divided_seconds=dict(divided),
        exchanges=tuple(_exchange(each, plan.degrees, staged) for each in plan.collectives),
        sample_bytes=sample_bytes,
        handed_on=handed_on,
    )


def _exchange(collective: Collective, degrees: Degrees, staged: Collection[str]) -> Exchange:
    """Return an exchange among the ranks that differ in the collective's axes, laid out as the degrees say."""
    names = [degree.name for degree in fields(degrees)]
    axes = collective.axis.split("+")
    first = min((names.index(axis) for axis in axes if getattr(degrees, axis) > 1), default=0)
    return Exchange(
        operation=collective.operation,
        ranks=prod(getattr(degrees, axis) for axis in axes),
        stride=prod(getattr(degrees, name) for name in names[:first]),
        bytes=collective.bytes,
        count=collective.count,
        staged=set(axes) <= set(staged),
    )
