"""The Local engine keeps the promises of engines, in all its forms."""

import pytest

from trainwright.engine import Local
from trainwright.testing.engine import EngineConformance


@pytest.mark.slow
class TestOneWorker(EngineConformance):
    def make_engine(self):
        return Local()


class TestTwoWorkers(EngineConformance):
    def make_engine(self):
        return Local(workers=2, timeout_seconds=300, memory_bytes=2**40)


@pytest.mark.slow
class TestFreshProcesses(EngineConformance):
    def make_engine(self):
        return Local(workers=2, fresh_process=True)


class TestInThisProcess(EngineConformance):
    processes = False

    def make_engine(self):
        return Local(workers=0)
