"""Publishing: there at once or not at all, whatever operation fails and whatever a power cut takes back."""

import errno
import json

import pytest
import torch
from faulty_files import FailingFiles, Killed, VolatileFiles

from trainwright.checkpoint import CheckpointConfig, Manager
from trainwright.checkpoint.manifest import Manifest
from trainwright.checkpoint.save.publish import list_published, publish, step_name
from trainwright.errors import CheckpointError, CheckpointSpaceError
from trainwright.publishing import FileLayer

SYNC = CheckpointConfig(writer="sync", on_error="raise")


def manager(folder, files=None, at=0):
    """Return a manager of a state that can be told from that of any other step."""
    made = Manager(folder, config=SYNC, files=files, x=torch.full((300,), float(at)), log={"at": at})
    made.steps = at
    return made


def restored(folder):
    """Restore as the next process does and return the step, or None; the state must be that step's."""
    x, log = torch.zeros(300), {}
    with Manager(folder, config=SYNC, x=x, log=log) as made:
        found = made.restore()
    if found is None:
        return None
    assert torch.equal(x, torch.full((300,), float(found.step)))
    assert log == {"at": found.step}
    return found.step


def save(folder, step, files=None):
    with manager(folder, files, step) as made:
        made.save(wait=True)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_there(tmp_path):
    """A folder per checkpoint: manifest, tensors, and the rest as JSON."""
    save(tmp_path, 1200)
    assert names(tmp_path) == ["step-000000001200"]
    folder = tmp_path / "step-000000001200"
    assert names(folder) == ["manifest.json", "rank-00000.safetensors", "state.json"]
    assert Manifest.read(folder).step == 1200
    assert json.loads((folder / "state.json").read_text())["log"] == {"at": 1200}


def test_a_step_saved_again_gets_a_name_of_its_own(tmp_path):
    """The later one counts, and no name is used twice."""
    for number in range(3):
        with Manager(tmp_path, config=SYNC, x=torch.full((2,), float(number))) as made:
            made.steps = 7
            made.save(wait=True)
    assert [path.name for path in list_published(tmp_path)] == ["step-000000000007.3", "step-000000000007.2"]
    x = torch.zeros(2)
    Manager(tmp_path, x=x).restore()
    assert x.tolist() == [2.0, 2.0]


def test_order_of_steps(tmp_path):
    """Folders are found newest step first, and nothing else is."""
    for name in ("step-000000000002", "step-000000000010", "step-000000000010.2", ".tmp-step-1", "step-x", "other"):
        (tmp_path / name).mkdir()
    assert [path.name for path in list_published(tmp_path)] == [
        "step-000000000010.2",
        "step-000000000010",
        "step-000000000002",
    ]
    assert list_published(tmp_path / "none") == []


def test_two_writers_of_one_step(tmp_path):
    """Both are there afterwards, under two names, whoever comes first."""
    layer = FileLayer()

    def write(folder, files):
        (folder / "file").write_bytes(b"mine")
        if not (tmp_path / step_name(5)).exists():  # another publishes while we write
            publish(layer, tmp_path, 5, 0, lambda *_: Manifest(step=5))
        return Manifest(step=5)

    assert publish(layer, tmp_path, 5, 0, write).path.name == "step-000000000005.2"


def test_what_others_left_half_done(tmp_path):
    """A restore clears up after processes that are no more, and leaves alone what may still be written."""
    for step in (1, 2):
        files = FailingFiles(killed=True)
        made = manager(tmp_path, files, step)
        files.count, files.at = 0, 6
        with pytest.raises(Killed):
            made.save(wait=True)
    half = sorted(tmp_path.glob(".tmp-*"))
    *words, _, nonce = half[0].name.split(".")
    half[0].rename(tmp_path / ".".join([*words, str(2**22 + 1), nonce]))  # no system has so many processes
    (tmp_path / ".trash-step-000000000001-ab").mkdir()
    assert restored(tmp_path) is None
    assert names(tmp_path) == [half[1].name]


def operations(tmp_path):
    """Return how many operations a save takes."""
    files = FailingFiles()
    made = manager(tmp_path / "count", files, 1)
    files.count = 0
    made.save(wait=True)
    return files.count


def test_an_operation_that_fails(tmp_path):
    """Whichever it is, the save is told to have failed and leaves nothing, or it is there; the one before always is."""
    last = operations(tmp_path)
    assert last > 10
    for at in range(1, last + 1):
        folder = tmp_path / str(at)
        save(folder, 1)
        files = FailingFiles(error=errno.EIO)
        made = manager(folder, files, 2)
        files.count, files.at = 0, at
        try:
            made.save(wait=True)
        except CheckpointError:
            assert restored(folder) in {1, 2}
            assert not [name for name in names(folder) if name.startswith(".tmp")], f"left over after operation {at}"
        else:
            assert restored(folder) == 2


def test_a_kill_at_any_operation(tmp_path):
    """The checkpoint before or the new one is there, and whole; what was half written is no checkpoint."""
    last = operations(tmp_path)
    for at in range(1, last + 2):
        folder = tmp_path / str(at)
        save(folder, 1)
        files = FailingFiles(killed=True)
        made = manager(folder, files, 2)
        files.count, files.at = 0, at
        try:
            made.save(wait=True)
        except Killed:
            assert restored(folder) in {1, 2}
        else:
            assert at > last - 3  # what fails to be removed at the end is no failure
            assert restored(folder) == 2


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_at_any_operation(tmp_path, seed):
    """Though any part of what was not synced is lost, the state is that of the save before or of the new one."""
    last = operations(tmp_path)
    outcomes = set()
    for at in range(1, last + 2):
        folder = tmp_path / str(at)
        save(folder, 1)
        files = VolatileFiles()
        made = manager(folder, files, 2)
        files.count, files.at = 0, at
        try:
            made.save(wait=True)
            told = True
        except Killed:
            told = False
        files.lose_power(seed * 1000 + at)
        step = restored(folder)
        assert step == 2 if told else step in {1, 2}, f"after a power cut at operation {at}"
        outcomes.add(step)
    assert outcomes == {1, 2}


def test_without_the_syncs_a_power_cut_is_seen(tmp_path):
    """The model of a power cut is able to find fault: a save that syncs nothing loses what it promised."""

    class Careless(VolatileFiles):
        def sync(self, handle):
            pass

        def sync_folder(self, path):
            pass

    lost = 0
    for seed in range(20):
        folder = tmp_path / str(seed)
        save(folder, 1)
        files = Careless()
        manager(folder, files, 2).save(wait=True)
        files.lose_power(seed)
        lost += restored(folder) != 2
    assert lost > 5


def test_no_room_once(tmp_path):
    """A write that finds no room is tried again after older checkpoints have gone."""
    for step in (1, 2):
        save(tmp_path, step)
    files = FailingFiles()
    made = manager(tmp_path, files, 3)
    files.count, files.at = 0, 3
    made.save(wait=True)
    assert restored(tmp_path) == 3


def test_no_room_at_all(tmp_path):
    """The sentence says what, where and why; nothing half written stays, and the one before does."""
    save(tmp_path, 1)
    files = FailingFiles(times=10**6)
    made = manager(tmp_path, files, 2)
    files.count, files.at = 0, 3
    with pytest.raises(CheckpointSpaceError) as caught:
        made.save(wait=True)
    assert str(caught.value) == (
        f"cannot save the checkpoint of step 2 in {tmp_path}: no space left on device; the one before is kept"
    )
    files.at = 10**9
    assert restored(tmp_path) == 1


def test_a_folder_that_cannot_be_written(tmp_path):
    """It is refused when the manager is made, not after hours of training."""
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(
        CheckpointSpaceError, match=r"file/deeper: checkpoints cannot be written there: not a directory"
    ):
        manager(tmp_path / "file/deeper")
    with pytest.raises(CheckpointSpaceError, match=r"checkpoints cannot be written there: read-only file system; give"):
        manager(tmp_path, FailingFiles(at=1, error=errno.EROFS))
