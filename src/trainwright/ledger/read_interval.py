"""How often a worker reads what the others wrote, and learns from it: so that training keeps the processors.

With N workers each record is read N times, so what all of them read grows with the square of their number.
"""

__all__ = ["first_pause", "pause_after"]

_SHARE = 0.02  # of a worker's time, at most
_SELDOM_SECONDS = 30.0
_RESULT_SECONDS = 1e-4  # to read and learn what another worker found, about
_PER_CORE = 2.0  # workers of one host for each of its cores: more of them read less often, so that all read as much


def pause_after(took_seconds: float, workers: int, cores: int) -> float:
    """Return the seconds until a worker reads again, after reading and learning that took `took_seconds`.

    `workers` share `cores`, itself among them. That takes one part in fifty of its time, or less: of all workers of a
    host together no more than a twenty-fourth of its processors.
    """
    crowd = max(1.0, workers / (_PER_CORE * cores))
    return crowd * min(_SELDOM_SECONDS, took_seconds * (1.0 / _SHARE - 1.0))


def first_pause(draw: float, workers: int, cores: int) -> float:
    """Return the seconds until a worker reads for the first time, by a draw from [0, 1) of its own.

    At once where cores suffice; else workers that begin together would all read when each has its first result.
    """
    if workers <= _PER_CORE * cores:
        return 0.0
    return draw * pause_after(workers * _RESULT_SECONDS, workers, cores)
