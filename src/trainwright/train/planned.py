"""A model and its optimizer set up for a plan: the optimizer keeps its groups, with the parameters of now."""

from typing import TYPE_CHECKING

from trainwright.errors import TrialError
from trainwright.train.parallelise import parallelise

if TYPE_CHECKING:
    import torch

    from trainwright.plan import Layout
    from trainwright.train.parallel.model import Parallel

__all__ = ["planned"]


def planned(
    model: "torch.nn.Module", optimizer: "torch.optim.Optimizer", plan: "Layout", *, sync_bn: bool
) -> "Parallel":
    """Return the model as the ranks train it; the optimizer steps what this rank has of its parameters.

    Raises `UnsupportedPlan`, and `TrialError` for an optimizer that has stepped, or of other parameters.
    """
    if optimizer.state:
        raise TrialError("prepare: with a plan the optimizer is to be new; it has stepped already")
    names = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
    foreign = [each for group in optimizer.param_groups for each in group["params"] if id(each) not in names]
    if foreign:
        raise TrialError(
            f"prepare: the optimizer has {len(foreign)} parameters that are not the model's; with a plan it needs the "
            "model's own"
        )
    parallel = parallelise(model, plan, sync_bn=sync_bn)
    now = dict(parallel.module.named_parameters(remove_duplicate=False))
    for group in optimizer.param_groups:
        group["params"] = [now[name] for each in group["params"] if (name := names[id(each)]) in now]
        if len({type(each) for each in group["params"]}) > 1:  # torch's grouped kernels take one kind of tensor
            group |= {name: False for name in ("foreach", "fused") if name in group}
    return parallel
