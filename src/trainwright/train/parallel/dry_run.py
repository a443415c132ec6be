"""Dry runs of layouts: sets a model up and trains a step on fake tensors, to refuse a plan before a job is submitted.

What a model's modules do not allow (heads that cannot be told apart, values that cross a pipeline's cut, operations
between whole and divided tensors) shows before a job is submitted. Nothing is computed and no memory is taken.
"""

from dataclasses import asdict, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor._redistribute import _gen_transform_infos
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves, tree_map_only

from trainwright.errors import UnsupportedPlan
from trainwright.model.cut.stages import batch_size
from trainwright.model.trace.corrections import RealFallback, depends_on_values
from trainwright.model.trace.recording import quiet_logging
from trainwright.model.trace.step import call_model, prepare_step
from trainwright.plan import Degrees, Layout
from trainwright.plan.runnable import innermost_axis
from trainwright.train.parallel.blocks import emptied
from trainwright.train.parallel.model import Loss
from trainwright.train.parallel.setup import set_up_model

__all__ = ["DryRun", "refusal_on"]

_LONGEST = 160


class DryRun:
    """Says of layouts why training does not set a model up so: what `Oracle.rank(dry_run=...)` asks of each plan.

    Layouts that divide the model alike are run once. Once `enough` of them were found to run, nothing is said of
    others.
    """

    def __init__(self, model: nn.Module, sample: Any, *, loss: Loss | None = None, enough: int | None = None) -> None:
        self.model, self.sample, self.loss, self.enough = model, sample, loss, enough
        self._known: dict[Layout, str] = {}

    def __call__(self, layout: Layout) -> str:
        """Return the reason, "" where the model is set up, or nothing is said."""
        alone = _without_replicas(layout, batch_size(self.sample))
        if alone not in self._known:
            if self.enough is not None and sum(not refusal for refusal in self._known.values()) >= self.enough:
                return ""
            self._known[alone] = refusal_on(self.model, self.sample, alone, loss=self.loss)
        return self._known[alone]


def refusal_on(model: nn.Module, sample: Any, layout: Layout, *, loss: Loss | None = None) -> str:
    """Return why training does not set a model up for a layout, "" where it does, or where a process group is in use.

    Replicas and the division of state are left out: they are set up for any model.
    """
    if layout.refusal or innermost_axis(layout) == "data" or dist.is_initialized():
        return layout.refusal
    alone = _without_replicas(layout, batch_size(sample))
    # What blocks do with parts of a sequence is tried on whole layers.
    if min(alone.degrees.tensor, alone.degrees.context) > 1:
        whole = replace(alone, strategy="context", degrees=Degrees(context=alone.degrees.context))
        if refusal := refusal_on(model, sample, whole, loss=loss):
            return refusal
    # Parts of images are tensors of a class of their own, which fake tensors cannot be, and those on meta can.
    images = innermost_axis(alone) in {"filter", "channel", "spatial"}
    if "meta" not in dist.Backend.backend_capability["fake"]:
        dist.Backend.backend_capability["fake"].append("meta")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=alone.devices)
    try:
        with quiet_logging():
            if images:
                batch = tree_map_only(torch.Tensor, lambda each: torch.empty_like(each, device="meta"), sample)
                alone = replace(alone, precision="fp32")  # there is no autocast on meta
                set_up_model(emptied(model), alone).backward(loss or _mean_square, [(1.0, batch)])
                return ""
            step = prepare_step(model, sample)
            parallel = set_up_model(step.model, alone)
            with step.tensors(), RealFallback():
                parallel.backward(loss or _mean_square, [(1.0, step.sample)])
    except UnsupportedPlan as error:
        return str(error).partition("cannot be set up: ")[2]
    except Exception as error:  # noqa: BLE001 -- whatever the model raises is why
        # Ranks that are not there send no values: what waits for one was set up.
        said = " ".join(str(error).split())
        unknown = depends_on_values(error) or "on meta tensors" in said
        return "" if unknown else f"{type(model).__name__} fails so divided: {said[:_LONGEST]}"
    finally:
        dist.destroy_process_group()
        # Meshes of other ranks compare equal to those of a later training in this process, whose groups are others.
        _clear_sharding_prop_cache()
        _gen_transform_infos.cache_clear()
    return ""


def _without_replicas(layout: Layout, samples: int) -> Layout:
    """Return how a layout divides the model, for a batch of so many samples."""
    stages = layout.degrees.pipeline
    parts = stages if samples % stages == 0 else 1
    return replace(
        layout.layout,
        strategy="+".join(
            part for part in layout.strategy.split("+") if part in asdict(layout.degrees) and part != "data"
        ),
        degrees=Degrees(**{**asdict(layout.degrees), "data": 1}),
        batch=samples,
        micro_batch=samples // parts,
        microbatches=parts,
        zero=0,
        shard=1,
    )


def _mean_square(model: nn.Module, batch: Any) -> torch.Tensor:
    outputs = [leaf for leaf in tree_leaves(call_model(model, batch)) if isinstance(leaf, torch.Tensor)]
    # Its gradient is a tensor like any other: of a plain mean it would be one number without strides.
    return outputs[0].float().square().mean()
