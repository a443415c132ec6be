"""Set up a model for a plan of the oracle, with torch's own parallel APIs where it has them, else with our modules."""

from typing import TYPE_CHECKING

from trainwright.errors import MissingExtra

if TYPE_CHECKING:
    import torch

    from trainwright.plan import Layout
    from trainwright.train.parallel.model import Parallel

__all__ = ["parallelise"]


def parallelise(model: "torch.nn.Module", plan: "Layout", *, sync_bn: bool = False) -> "Parallel":
    """Return the model as the ranks of torch.distributed train it together by `plan`; call it on every rank.

    Weights are those of rank 0. Make the optimizer afterwards, of the returned model's parameters: its state is no part
    of the plan's memory budget, as it is with `trial.prepare(plan=...)`.
    `sync_bn` takes batch statistics over all ranks, as one device would. Raises `UnsupportedPlan`, naming the strategy,
    for what cannot be set up.
    """
    try:
        from trainwright.train.parallel.setup import set_up_model
    except ImportError as error:
        raise MissingExtra.of("a parallel plan", "torch", "torch") from error
    return set_up_model(model, plan, sync_bn=sync_bn)
