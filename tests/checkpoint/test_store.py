"""Checkpoints: what is published is whole, what is damaged is set aside, and a torn save leaves the one before."""

import errno
import json
import os
import resource
import shutil

import numpy as np
import pytest
import torch

from trainwright.checkpoint import CheckpointStore, store
from trainwright.errors import TrainwrightError


def state_of(epoch):
    return {"weights": torch.full((64,), float(epoch)), "nested": {"list": [epoch, 0.5], "text": "x"}}


def save(kept, *epochs):
    for epoch in epochs:
        kept.save(epoch, state_of(epoch), {"step": None, "metrics": {"val_loss": 1 / epoch}})


def restored_epoch(folder, lease=9):
    """Restore as a later lease does and return the epoch, or None; the content must be that epoch's."""
    found = CheckpointStore(folder, lease).restore()
    if found is None:
        return None
    saved, state = found
    assert torch.equal(state["weights"], state_of(saved.epoch)["weights"])
    assert state["nested"] == state_of(saved.epoch)["nested"]
    assert saved.report["metrics"] == {"val_loss": 1 / saved.epoch}
    return saved.epoch


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.glob("lease-*/*"))


def test_round_trip(tmp_path):
    """What was saved comes back, with its manifest."""
    saved = CheckpointStore(tmp_path, 1).save(3, state_of(3), {"step": 40, "metrics": {"val_loss": 0.5}})
    found, state = CheckpointStore(tmp_path, 2).restore()
    assert found == saved
    assert torch.equal(state["weights"], state_of(3)["weights"])
    manifest = json.loads((saved.path / "manifest.json").read_text())
    assert manifest["bytes"] == saved.size == (saved.path / "state.pt").stat().st_size
    assert (manifest["epoch"], manifest["digest"], manifest["report"]["step"]) == (3, saved.digest, 40)


def test_nothing_there(tmp_path):
    assert CheckpointStore(tmp_path / "none", 1).restore() is None


def test_retention_keeps_two(tmp_path):
    """The newest and one to fall back to, over all leases."""
    save(CheckpointStore(tmp_path, 1), 1, 2, 3, 4)
    assert names(tmp_path) == ["lease-1/epoch-000003", "lease-1/epoch-000004"]
    save(CheckpointStore(tmp_path, 2), 5)
    assert names(tmp_path) == ["lease-1/epoch-000004", "lease-2/epoch-000005"]


def test_the_newest_lease_counts(tmp_path):
    """A later lease that fell back to an earlier epoch is what goes on; an earlier lease never sees it."""
    save(CheckpointStore(tmp_path, 1), 7, 8)
    save(CheckpointStore(tmp_path, 2), 8)
    saved, _ = CheckpointStore(tmp_path, 3).restore()
    assert (saved.lease, saved.epoch) == (2, 8)
    saved, _ = CheckpointStore(tmp_path, 1).restore()
    assert (saved.lease, saved.epoch) == (1, 8)


DAMAGES = {
    "truncated": lambda path: os.truncate(path / "state.pt", 100),
    "emptied": lambda path: os.truncate(path / "state.pt", 0),
    "one bit": lambda path: flip(path / "state.pt"),
    "no state": lambda path: (path / "state.pt").unlink(),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "torn manifest": lambda path: os.truncate(path / "manifest.json", 20),
    "foreign manifest": lambda path: (path / "manifest.json").write_text('["no", "manifest"]'),
    "manifest without digest": lambda path: (path / "manifest.json").write_text('{"schema": 1, "epoch": 2}'),
}


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_set_aside(tmp_path, damage):
    """The newest is damaged: the one before is used, and the damaged one is kept under another name."""
    save(CheckpointStore(tmp_path, 1), 1, 2)
    damage(tmp_path / "lease-1/epoch-000002")
    assert restored_epoch(tmp_path) == 1
    bad, good = names(tmp_path)
    assert bad.startswith("lease-1/.bad-epoch-000002-")
    assert good == "lease-1/epoch-000001"
    assert restored_epoch(tmp_path) == 1


def test_both_damaged(tmp_path):
    """With no whole one left the trial starts anew."""
    save(CheckpointStore(tmp_path, 1), 1, 2)
    for epoch in (1, 2):
        DAMAGES["one bit"](tmp_path / f"lease-1/epoch-{epoch:06d}")
    assert restored_epoch(tmp_path) is None
    save(CheckpointStore(tmp_path, 2), 1)
    assert restored_epoch(tmp_path) == 1


class Faults:
    """Lets the file operations of the store fail from the `at`-th on: once, or for ever as after a kill."""

    OPERATIONS = (("mkdir", os), ("rename", os), ("fsync", os), ("open", os), ("open", store.io), ("_write", store))

    def __init__(self, monkeypatch, at, *, killed, error=errno.ENOSPC):
        self.count, self.at, self.killed, self.error = 0, at, killed, error
        monkeypatch.setattr(shutil, "rmtree", self.wrapped(shutil.rmtree))
        for name, home in self.OPERATIONS:
            monkeypatch.setattr(home, name, self.wrapped(getattr(home, name)))

    def wrapped(self, operation):
        def possibly(*arguments, **named):
            self.count += 1
            if self.count == self.at or (self.killed and self.count > self.at):
                if operation.__name__ == "_write":
                    path, content = arguments
                    path.write_bytes(bytes(content)[:7])  # torn in the middle
                if named.get("ignore_errors") and not self.killed:
                    return None
                raise Killed if self.killed else OSError(self.error, os.strerror(self.error))
            return operation(*arguments, **named)

        return possibly


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("killed", [False, True], ids=["failing", "killed"])
@pytest.mark.parametrize("again", [False, True], ids=["the next epoch", "the same epoch again"])
def test_a_torn_save_leaves_the_one_before(tmp_path, killed, again):
    """Whichever file operation of a save fails, an older checkpoint or the new one is there, and whole."""
    at, ended = 0, False
    while not ended:
        at += 1
        folder = tmp_path / str(at)
        save(CheckpointStore(folder, 1), 1, 2)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, at, killed=killed)
            try:
                save(CheckpointStore(folder, 1), 2 if again else 3)
            except (TrainwrightError, Killed):
                pass
            else:
                ended = faults.count < at
        allowed = {1, 2} if again and killed else {2, 3}  # a kill between two renames may cost the newest one
        assert restored_epoch(folder) in allowed, f"after a fault at operation {at}"
        if killed:
            assert not [name for name in names(folder) if ".tmp-" in name], "the next lease clears up"
    assert at > 8


def test_a_full_disk_is_told_in_one_sentence(tmp_path, monkeypatch):
    """The sentence names the checkpoint and the reason, and nothing half written stays."""
    save(CheckpointStore(tmp_path, 1), 1)
    Faults(monkeypatch, 4, killed=False)
    with pytest.raises(TrainwrightError) as caught:
        save(CheckpointStore(tmp_path, 1), 2)
    target = tmp_path / "lease-1/epoch-000002"
    assert str(caught.value) == (
        f"cannot save the checkpoint {target}: no space left on device; the one before is kept"
    )
    assert names(tmp_path) == ["lease-1/epoch-000001"]


def test_a_write_that_the_system_cuts_short(tmp_path):
    """A real failure in the middle of a file: the limit of file sizes."""
    save(CheckpointStore(tmp_path, 1), 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(TrainwrightError, match=r"cannot save the checkpoint .*: file too large; the one before is"):
            save(CheckpointStore(tmp_path, 1), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert restored_epoch(tmp_path) == 1


def test_half_written_folders_of_earlier_leases_are_removed(tmp_path):
    """A lease clears up after its predecessors, and leaves its own writing alone."""
    for lease in (1, 2):
        (tmp_path / f"lease-{lease}/.tmp-epoch-000001-abcd").mkdir(parents=True)
    assert CheckpointStore(tmp_path, 2).restore() is None
    assert names(tmp_path) == ["lease-2/.tmp-epoch-000001-abcd"]


def test_numbers_of_numpy_come_back(tmp_path):
    """A learning rate that NumPy computed must not make the checkpoint unreadable."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=np.float64(0.1), momentum=np.float32(0.5))
    state = {"optimizer": optimizer.state_dict(), "best": (np.int64(3), [np.float64(0.5)])}
    CheckpointStore(tmp_path, 1).save(1, state, {})
    _, found = CheckpointStore(tmp_path, 2).restore()
    assert found["best"] == (3, [0.5])
    assert found["optimizer"]["param_groups"][0]["lr"] == 0.1
    torch.optim.SGD(model.parameters(), lr=0.2).load_state_dict(found["optimizer"])
