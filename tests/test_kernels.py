"""How kernels are compiled."""

import numba

from trainwright import kernels


def test_kernels_work_where_no_cache_can_be_written(monkeypatch):
    """Numba refuses to cache when it finds no folder; the kernel is compiled all the same."""
    real = numba.njit

    def refusing(*functions, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(*functions, **options)

    monkeypatch.setattr(numba, "njit", refusing)
    assert kernels.compiled(lambda x: x + 1)(1) == 2
