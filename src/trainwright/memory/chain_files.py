"""What can be planned: a chain, or a file that holds one. The one place that turns what a person gives into a chain."""

from pathlib import Path
from typing import Any

from trainwright.errors import ChainError, UnsupportedModel
from trainwright.model.chain import Chain
from trainwright.model.profile import Profile

__all__ = ["load_chain"]


def load_chain(
    subject: Any,
    sample: Any = None,
    *,
    loss: Any = None,
    optimizer: Any = None,
    accumulate: bool = False,
    skips: bool = True,
) -> Chain:
    """Return the chain that `subject` is, that a profile or the file of that name holds, or that is measured."""
    if isinstance(subject, Chain):
        return subject
    if isinstance(subject, Profile):
        return subject.chain
    if isinstance(subject, str | Path):
        return Chain.load(subject)
    if not hasattr(subject, "named_parameters"):
        raise ChainError(
            f"memory: got {type(subject).__name__}; allowed: a torch module with a sample, a profile with seconds, a "
            "Chain, or the name of a chain file"
        )
    if sample is None:
        raise UnsupportedModel(
            f"memory, sample: got None for a model ({type(subject).__name__}); allowed: a batch that it takes"
        )
    from trainwright.train.parallel.recompute.fitting import chain_of

    return chain_of(subject, sample, loss=loss, optimizer=optimizer, accumulate=accumulate, skips=skips)
