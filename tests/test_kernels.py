"""How kernels are compiled."""

from trainwright import kernels


def test_kernels_work_where_no_cache_can_be_written(monkeypatch):
    """Numba refuses to cache when it finds no folder; the kernel is compiled all the same."""
    real = kernels.njit

    def refusing(*, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(kernels, "njit", refusing)
    assert kernels.compiled(lambda x: x + 1)(1) == 2
