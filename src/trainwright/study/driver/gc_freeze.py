"""Exclude all existing objects from garbage collection (`gc.freeze`) while a study runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["gc_frozen"]


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Freeze the objects that exist now until the end of the block; do nothing if they are frozen already.

    Replaying other workers' records creates many long-lived objects, and each full collection would scan every
    imported module again. In a large team that took a fifth of each worker's time.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
