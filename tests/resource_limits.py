"""A bound on the memory and the processor time of a test, kept by the system itself."""

import contextlib
import resource
import signal
from pathlib import Path

__all__ = ["GIBIBYTE", "limited"]

GIBIBYTE = 2**30


@contextlib.contextmanager
def limited(more_bytes=GIBIBYTE, seconds=10):
    """Refuse this process more memory than it has and `more_bytes` (MemoryError), and over `seconds` of processor.

    Libraries that are loaded count as memory that it has: torch alone reserves gigabytes of addresses.
    """
    reserved = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    used = resource.getrusage(resource.RUSAGE_SELF)
    bounds = {
        resource.RLIMIT_AS: reserved + more_bytes,
        # In whole seconds of the process's life, rounded up.
        resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime) + 1 + seconds,
    }
    before = {kind: resource.getrlimit(kind) for kind in bounds}
    handler = signal.signal(signal.SIGXCPU, _out_of_time)
    try:
        for kind, bound in bounds.items():
            resource.setrlimit(kind, (bound, before[kind][1]))
        yield
    finally:
        for kind, bound in before.items():
            resource.setrlimit(kind, bound)
        signal.signal(signal.SIGXCPU, handler)


def _out_of_time(*_):
    # Python runs this between two of its instructions: a loop inside of C is left to pytest's own time limit.
    message = "more processor time than is allowed"
    raise AssertionError(message)
