"""The ledger: records are appended, read and claimed; a study's state is a fold over them."""

from trainwright.ledger import facts
from trainwright.ledger.directory import DirectoryLedger
from trainwright.ledger.fold import State, blocks, fold, state_of
from trainwright.ledger.memory import MemoryLedger
from trainwright.ledger.objectives import Constraint, Objective
from trainwright.ledger.opening import open_ledger
from trainwright.ledger.protocol import Cursor, Dropped, Ledger
from trainwright.ledger.record import Record
from trainwright.ledger.redis import RedisLedger
from trainwright.ledger.trials import Status, TrialState
from trainwright.ledger.writers import Writer

__all__ = [
    "Constraint",
    "Cursor",
    "DirectoryLedger",
    "Dropped",
    "Ledger",
    "MemoryLedger",
    "Objective",
    "Record",
    "RedisLedger",
    "State",
    "Status",
    "TrialState",
    "Writer",
    "blocks",
    "facts",
    "fold",
    "open_ledger",
    "state_of",
]
