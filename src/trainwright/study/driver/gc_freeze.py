"""The heap while a study runs: what is there already need not be looked through for garbage again and again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["gc_frozen"]


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Let the garbage collector pass over all that is there now, unless somebody has told it so already.

    What others write becomes objects that stay, and for so many new ones the collector looks through everything that
    ever was imported, again and again: a fifth of a worker's time among many.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
