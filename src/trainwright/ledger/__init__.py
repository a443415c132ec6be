"""The ledger: records are appended, read and claimed; a study's state is a fold over them."""

from trainwright.ledger import facts
from trainwright.ledger.directory import DirectoryLedger
from trainwright.ledger.fold import Decision, State, blocks, fold, state_of
from trainwright.ledger.memory import MemoryLedger
from trainwright.ledger.objectives import (
    Constraint,
    Objective,
    Outcome,
    keeps,
    losses_of,
    parse_constraints,
    parse_objectives,
    refusal,
    violation_of,
)
from trainwright.ledger.opening import is_url, open_ledger
from trainwright.ledger.protocol import Cursor, Dropped, Ledger
from trainwright.ledger.record import FORMAT, Record
from trainwright.ledger.redis import RedisLedger
from trainwright.ledger.standing import state_counts, under_way
from trainwright.ledger.trials import Checkpoint, End, Failure, Lease, Offer, RaisedAt, Report, Status, TrialState
from trainwright.ledger.writers import Liveness, Writer

__all__ = [
    "FORMAT",
    "Checkpoint",
    "Constraint",
    "Cursor",
    "Decision",
    "DirectoryLedger",
    "Dropped",
    "End",
    "Failure",
    "Lease",
    "Ledger",
    "Liveness",
    "MemoryLedger",
    "Objective",
    "Offer",
    "Outcome",
    "RaisedAt",
    "Record",
    "RedisLedger",
    "Report",
    "State",
    "Status",
    "TrialState",
    "Writer",
    "blocks",
    "facts",
    "fold",
    "is_url",
    "keeps",
    "losses_of",
    "open_ledger",
    "parse_constraints",
    "parse_objectives",
    "refusal",
    "state_counts",
    "state_of",
    "under_way",
    "violation_of",
]
