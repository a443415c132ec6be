"""What can be planned: a chain, or a file that holds one. The one place that turns what a person gives into a chain."""

from pathlib import Path
from typing import Any

from trainwright.errors import ChainError
from trainwright.memory.chain import Chain
from trainwright.memory.graphs import read_graph

__all__ = ["as_chain", "read_chain"]


def as_chain(subject: Any) -> Chain:
    """Return the chain that `subject` is, or that the file of that name holds."""
    if isinstance(subject, Chain):
        return subject
    if isinstance(subject, str | Path):
        return read_chain(subject)
    raise ChainError(f"memory: got {type(subject).__name__}; allowed: a Chain, or the name of a chain or graph file")


def read_chain(path: str | Path, *, saved_multiple: float = 1.0) -> Chain:
    """Read a chain file (.json), or a PipeDream graph, whose saved bytes are a multiple of its outputs'."""
    if Path(path).suffix == ".json":
        return Chain.load(path)
    return read_graph(path, saved_multiple=saved_multiple)
