"""The ledgers that ship with the package pass the conformance class."""

import itertools
from typing import get_args

import pytest
from known_records import known_records

from trainwright.errors import StudyError
from trainwright.ledger import DirectoryLedger, MemoryLedger
from trainwright.ledger.journal import Fsync
from trainwright.testing.ledger import LedgerConformance, records


class TestMemoryLedger(LedgerConformance):
    records = known_records | records

    def make(self):
        return MemoryLedger()

    def another(self, ledger):
        return MemoryLedger(of=ledger)


@pytest.mark.parametrize("policy", get_args(Fsync), scope="class")
class TestDirectoryLedger(LedgerConformance):
    examples = 10
    records = known_records | records

    @pytest.fixture(autouse=True)
    def _home(self, tmp_path, policy):
        self.paths = (tmp_path / f"ledger-{i}" for i in itertools.count())
        self.policy = policy

    def make(self):
        return DirectoryLedger(next(self.paths), create=True, fsync=self.policy)

    def another(self, ledger):
        return DirectoryLedger(ledger.directory, fsync=self.policy)


def test_unknown_fsync_policy(tmp_path):
    with pytest.raises(StudyError, match=r"fsync: got 'sometimes'; allowed: 'lifecycle', 'always', 'never'"):
        DirectoryLedger(tmp_path, create=True, fsync="sometimes")
