"""Cuts a model into pipeline stages: the modules that stages begin with, and which stage owns which parameters.

A stage owns what stands in the model between its first module and that of the next stage, in the order in which modules
were made. Where the forward uses a parameter in another stage than this order says, it is lent: `DividedModel.lend`.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from torch import nn

from trainwright.errors import UnsupportedPlan
from trainwright.plan import Layout
from trainwright.train.parallel.blocks import blocks_of, chain_of

__all__ = ["OwnedModule", "cuts_of", "owned_modules"]


def cuts_of(model: nn.Module, plan: Layout) -> tuple[str, ...]:
    """Return the paths of the modules that the stages but the first begin with.

    A plan that names none counts the modules of an `nn.Sequential`, or leaves it to us: equal parts of the sequence, or
    of the model's blocks. Raises `UnsupportedPlan` where that does not fit the model.
    """
    chunks = plan.chunks if plan.schedule == "interleaved" else 1
    count = len(plan.placement) or plan.degrees.pipeline * chunks
    if plan.cuts:
        if len(plan.cuts) != count - 1:
            raise UnsupportedPlan.of(plan.strategy, f"it names {len(plan.cuts)} cuts for {count} stages")
        return plan.cuts
    if isinstance(model, nn.Sequential):
        chain = [path for path, _ in chain_of(model)]
    elif not plan.stages:
        paths = {module: path for path, module in model.named_modules()}
        chain = [paths[block] for block in blocks_of(model)]
    else:
        raise UnsupportedPlan.of(
            plan.strategy,
            f"{type(model).__name__} is no nn.Sequential, whose modules its stages {plan.stages} could count; plan it "
            "with a profile of the model, which names them",
        )
    # Where the modules do not divide evenly, the first stages have one more.
    sizes = plan.stages or tuple(len(range(item, len(chain), count)) for item in range(count))
    if len(sizes) != count or sum(sizes) != len(chain) or min(sizes) < 1:
        raise UnsupportedPlan.of(
            plan.strategy,
            f"its stages {sizes} are for {count} stages of {sum(sizes)} modules; the model has {len(chain)}, one after "
            "the other",
        )
    return tuple(chain[end] for end in accumulate(sizes[:-1]))


class OwnedModule(NamedTuple):
    """A module that stages call as it is, or the parameters that stand directly in one that is cut."""

    path: str
    module: nn.Module
    stage: int
    whole: bool
    """Whether it is called as it is."""

    def holders(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules that hold its tensors, with their paths."""
        if self.whole:
            yield from self.module.named_modules(prefix=self.path)
        else:
            yield self.path, self.module


def owned_modules(model: nn.Module, plan: Layout, cuts: tuple[str, ...]) -> list[OwnedModule]:
    """Return the outermost modules with parameters in which no stage begins, and what holds parameters above these.

    Raises `UnsupportedPlan` for a cut that is no module of the model.
    """
    known = dict(model.named_modules(remove_duplicate=False))
    missing = [path for path in cuts if path not in known]
    if missing:
        raise UnsupportedPlan.of(plan.strategy, f"{type(model).__name__} has no module {missing[0]!r} to begin a stage")
    above = {"", *(path.rsplit(".", up)[0] for path in cuts for up in range(1, path.count(".") + 1))}
    # Where stages begin, in the order in which modules were made.
    places = {module: place for place, module in enumerate(model.modules())}
    begins = [places[known[path]] for path in cuts]
    found: list[OwnedModule] = []
    for path, module in model.named_modules():
        stage = sum(begin <= places[module] for begin in begins)
        if path in above:
            found.append(OwnedModule(path, module, stage, whole=False))
        elif path.rpartition(".")[0] in above and next(module.parameters(), None) is not None:
            found.append(OwnedModule(path, module, stage, whole=True))
    return found
