"""A model described for planning: the chain of blocks of layers of one training step, with work, bytes and times."""

__all__: list[str] = []
