"""Modules that are split over ranks, as pipeline stages are: which rank holds what, and the trees of all united.

A checkpoint keeps the whole: the trees of the ranks are united when it is saved, and cut to what is here when it is
restored. So the stages of one run are the model of another, or its other stages.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PipelineParts"]


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """The tensors of modules that not all ranks hold; the same on all ranks but for `rank`."""

    rank: int = 0
    holders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By the name of a tensor, the ranks that hold it."""
    items: frozenset[str] = frozenset()
    """The modules and optimizers, of which each rank may have a part."""

    @classmethod
    def of(cls, names: Sequence[Collection[str]], rank: int, items: Collection[str]) -> "PipelineParts":
        """Return who holds what, of the names on each rank."""
        held: dict[str, list[int]] = {}
        for place, own in enumerate(names):
            for name in own:
                held.setdefault(name, []).append(place)
        # Only tensors that some rank lacks; the others need no table.
        holders = {name: tuple(ranks) for name, ranks in held.items() if len(ranks) < len(names)}
        return cls(rank, holders, frozenset(items if holders else ()))

    def holding(self, name: str) -> tuple[int, ...] | None:
        """Return the ranks that hold a tensor, an optimizer's with its parameter; None: all."""
        # "optimizer.state.model.0.weight.exp_avg" is where "model.0.weight" is.
        _, _, parameter = name.rpartition(".")[0].partition(".state.")
        return self.holders.get(name, self.holders.get(parameter))

    def here(self, name: str) -> bool:
        """Whether this rank holds a tensor."""
        ranks = self.holding(name)
        return ranks is None or self.rank in ranks

    def unite_trees(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return a tree in which the ranks' own trees of divided items ("model@1") are one ("model")."""
        found: dict[str, Any] = {}
        for item, value in tree.items():
            # "model@1" is what rank 1 has of "model".
            home = item.rpartition("@")[0]
            whole = home if home in self.items else item
            found[whole] = _join_trees(found[whole], value) if whole in found else value
        return found

    def cut(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return a tree with what this rank has of divided items."""
        return {item: self._cut_item(item, value) if item in self.items else value for item, value in tree.items()}

    def _cut_item(self, item: str, tree: Mapping[str, Any]) -> dict[str, Any]:
        # Only the tree of an optimizer has groups; that of a module has its names at the top.
        if "param_groups" not in tree:
            return {name: value for name, value in tree.items() if self.here(f"{item}.{name}")}
        groups = [
            {**group, "params": [name for name in group["params"] if self.here(name)]} for group in tree["param_groups"]
        ]
        state = {name: value for name, value in tree["state"].items() if self.here(name)}
        return {**tree, "state": state, "param_groups": groups}


def _join_trees(one: Any, other: Any) -> Any:
    """Return what two ranks' trees are together: all keys, and all names of a list of names."""
    if one == other:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        return {**one, **{key: _join_trees(one[key], value) if key in one else value for key, value in other.items()}}
    if isinstance(one, list) and isinstance(other, list):
        if all(isinstance(each, dict) for each in (*one, *other)) and len(one) == len(other):
            return [_join_trees(*pair) for pair in zip(one, other, strict=True)]
        # The names of both, each once, in the order in which they come.
        return list(dict.fromkeys((*one, *other)))
    # Of plain values that differ, those of the first rank count.
    return one
