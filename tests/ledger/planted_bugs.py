"""Bugs that the simulation must find: each is planted in the code of a seam, as a slip of its author might be."""

import os

from trainwright import publishing
from trainwright.checkpoint import manager
from trainwright.checkpoint.restore import restored
from trainwright.ledger import directory, journal, record, writers
from trainwright.ledger.fold import State
from trainwright.study.driver.trial_queue import TrialQueue

__all__ = ["PLANTED"]


def no_sync(patch):
    """Do not bring records to the disk."""
    patch.setattr(journal.JournalWriter, "sync", lambda self: None)


def doubtful_forgotten(patch):
    """Do not write again what a failed sync has left in doubt."""
    before = directory.DirectoryLedger._renew

    def renew(self):
        self._journal.doubtful = []
        before(self)

    patch.setattr(directory.DirectoryLedger, "_renew", renew)


def same_file_after_failure(patch):
    """Go on in the file whose end is unknown after a failed append."""
    patch.setattr(directory.DirectoryLedger, "_renew", lambda self: None)


def shared_claims(patch):
    """Let everybody win every claim."""
    patch.setattr(directory.DirectoryLedger, "claim", lambda self, key, token: token)


def short_writes_acknowledged(patch):
    """Take whatever the system has written of a batch for all of it."""

    class Careless:
        def __getattr__(self, name):
            return getattr(os, name)

        def write(self, handle, data):
            os.write(handle, data)
            return len(data)

    patch.setattr(journal, "os", Careless())


def everybody_dead(patch):
    """Hold a writer dead as soon as it is looked at."""
    patch.setattr(writers.Liveness, "is_silent", lambda self, name, beats: True)


def nobody_dead(patch):
    """Never find out that a worker is dead."""
    patch.setattr(writers.Liveness, "is_silent", lambda self, name, beats: False)


def counted_again(patch):
    """Count a result once for each run of its trial."""
    patch.setattr(State, "results", property(lambda self: sum(t.lease for t in self.trials.values() if t.has_result)))


def budget_off_by_one(patch):
    """Allow one number more than the budget."""
    before = State.allowed
    patch.setattr(State, "allowed", lambda self, trials: before(self, trials) + 1)


def state_not_restored(patch):
    """Go on from the epoch of a checkpoint, but not from its state."""
    patch.setattr(manager, "load_state", lambda *_: {})


def trials_left_behind(patch):
    """Leave what dead workers had."""
    patch.setattr(TrialQueue, "take_over", lambda self, numbers: None)


def checksums_ignored(patch):
    """Take each line of a journal that is JSON for a record."""
    patch.setattr(record, "crc32", lambda text: 0)
    patch.setattr(record, "_checksum_matches", lambda checksum, text: True)


def checkpoints_unverified(patch):
    """Restore whatever lies in a checkpoint's folder."""
    patch.setattr(restored, "find_damages", lambda *_, **__: iter(()))


def folders_not_synced(patch):
    """Make the folders of a study and of checkpoints without bringing their names to the disk."""
    for module in (directory, publishing):
        patch.setattr(module, "make_folder", lambda path: path.mkdir(parents=True, exist_ok=True))
    patch.setattr(directory, "sync_folder", lambda path: None)


PLANTED = {
    bug.__name__: bug
    for bug in (
        no_sync,
        doubtful_forgotten,
        same_file_after_failure,
        shared_claims,
        short_writes_acknowledged,
        everybody_dead,
        nobody_dead,
        counted_again,
        budget_off_by_one,
        state_not_restored,
        trials_left_behind,
        checksums_ignored,
        checkpoints_unverified,
        folders_not_synced,
    )
}
