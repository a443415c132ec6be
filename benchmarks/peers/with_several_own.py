"""Our searchers with several objectives behind ask and tell; a loss is a list."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.peers.columns import Column
from benchmarks.peers.with_trainwright import Own

import trainwright as tw

__all__ = ["METHODS", "Several"]


class Several(Own):
    """A study in memory."""

    def __init__(
        self,
        columns: Sequence[Column],
        seed: int,
        *,
        objectives: int = 1,
        searcher: str = "ForestSearcher",
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(columns, seed)
        settings = settings or {}
        self._names = ["loss"] if objectives == 1 else [f"loss{i}" for i in range(objectives)]
        made = getattr(tw, searcher)(**settings)
        self._study = tw.Study(self.space, [f"min {name}" for name in self._names], seed=seed, searcher=made)
        named = ", ".join(f"{key}={value}" for key, value in settings.items()) or "defaults"
        self.version = self.version.replace("ForestSearcher defaults", f"{searcher} {named}")

    def tell(self, tokens: Sequence[Any], losses: Sequence[Any]) -> None:
        """Tell losses."""
        for configuration, values in zip(tokens, losses, strict=True):
            each = values if isinstance(values, list) else [values]
            self._study.tell(configuration, **dict(zip(self._names, each, strict=True)))


METHODS = {
    "several_own-forest": Several,
    "several_own-default": partial(Several, searcher="DefaultSearcher"),
    "several_own-botorch": partial(Several, searcher="BoTorchSearcher"),
    "several_own-random": partial(Several, searcher="RandomSearcher"),
}
