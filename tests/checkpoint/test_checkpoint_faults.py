"""Faults as they come: processes killed while they save, bits that flip, disks that are full, runs thought dead."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainwright.checkpoint import CheckpointConfig, Manager
from trainwright.checkpoint.owner import Owner
from trainwright.errors import CheckpointSpaceError

sys.path.append(str(Path(__file__).parents[2] / "benchmarks/checkpoint"))
from flips import DAMAGES, damage_at_random
from kills import kill_while_saving

SYNC = CheckpointConfig(writer="sync", on_error="raise")
linux = pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has torch loaded")


def check_kills(folder, kills, **settings):
    found = kill_while_saving(folder, kills, **settings)
    assert (found.lost, found.wrong) == (0, 0)
    return found


@linux
def test_killed_while_saving(tmp_path):
    """Whenever a saver is killed, the next finds its last commit, whole."""
    assert check_kills(tmp_path / "checkpoints", 20, seed=1).kills == 20


@linux
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("writer", "kills", "within"),
    [("thread", 500, 0.15), ("sync", 200, 0.15)],
)
def test_killed_a_thousand_times(tmp_path, writer, kills, within):
    """With either writer."""
    found = check_kills(tmp_path / "checkpoints", kills, seed=2, writer=writer, within_seconds=within)
    assert found.commits > kills // 10
    assert found.half_done > kills // 100


@pytest.mark.parametrize("kind", DAMAGES)
def test_damages(tmp_path, kind):
    """Each is noticed, and the checkpoint before is taken."""
    found = damage_at_random(tmp_path, 12, seed=3, kinds=(kind,))
    assert (found.damages, found.undetected) == (12, 0)
    assert found.fell_back >= 10  # two equal files may have changed places


@pytest.mark.slow
def test_a_thousand_damages(tmp_path):
    assert damage_at_random(tmp_path / "flips", 500, seed=4).undetected == 0
    assert damage_at_random(tmp_path / "others", 500, seed=5, kinds=tuple(DAMAGES)).undetected == 0


def begun(folder, lease):
    """Begin or go on under a lease; return its manager, its state and the step that it went on from."""
    x = torch.zeros(4)
    manager = Manager(Owner(folder=folder, lease=lease), config=SYNC, x=x)
    restored = manager.restore()
    step = 0 if restored is None else restored.step
    assert torch.equal(x, torch.full((4,), float(step)))
    return manager, x, step


def save(manager, x, step):
    manager.steps = step
    x.fill_(step)
    manager.save(wait=True)


class TestRunsThoughtDead:
    def test_a_late_commit_is_never_restored(self, tmp_path):
        """A run that lives on after its successor began is not gone on from, even if the successor saved nothing."""
        zombie, x, _ = begun(tmp_path, 1)
        save(zombie, x, 10)
        _, _, step = begun(tmp_path, 2)
        assert step == 10
        save(zombie, x, 20)
        third, y, step = begun(tmp_path, 3)
        assert step == 10
        save(third, y, 11)
        save(zombie, x, 30)
        _, _, step = begun(tmp_path, 4)
        assert step == 11

    def test_late_commits_before_any_other(self, tmp_path):
        """A successor that began anew is not made to go on from what came later."""
        zombie, x, _ = begun(tmp_path, 1)
        _, _, step = begun(tmp_path, 2)
        assert step == 0
        save(zombie, x, 5)
        _, _, step = begun(tmp_path, 3)
        assert step == 0

    def test_it_does_not_see_its_successor(self, tmp_path):
        zombie, x, _ = begun(tmp_path, 1)
        save(zombie, x, 10)
        second, y, _ = begun(tmp_path, 2)
        save(second, y, 12)
        assert begun(tmp_path, 1)[2] == 10
        assert begun(tmp_path, 2)[2] == 12

    def test_what_it_left_half_done_goes(self, tmp_path):
        """A lease clears up after those before it, and leaves its own alone."""
        for lease in (1, 2):
            (tmp_path / f"lease-{lease}/.tmp-step-000000000001.{lease}.00000000.1.ab").mkdir(parents=True)
        begun(tmp_path, 2)
        assert [path.parent.name for path in tmp_path.glob("lease-*/.tmp*")] == ["lease-2"]


def mounted(folder, *options):
    folder.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["/bin/mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("file systems cannot be mounted here")


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    mounted(folder, "size=1m")
    yield folder
    subprocess.run(["/bin/umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(small_disk):
    """The save is told to have failed, leaves nothing, and the one before is there; with room again all goes on."""
    x = torch.zeros(100_000)
    with Manager(small_disk, config=SYNC, x=x) as manager:
        save(manager, x, 1)
        (small_disk / "other").write_bytes(bytes(400_000))
        with pytest.raises(
            CheckpointSpaceError, match=r"checkpoint of step 2 .*: no space left on device; the one befo"
        ):
            save(manager, x, 2)
        assert not list(small_disk.glob(".tmp*"))
        assert manager.restore().step == 1
        (small_disk / "other").unlink()
        save(manager, x, 4)
        assert manager.restore().step == 4


def test_a_read_only_folder(tmp_path):
    """It is refused at once, in one sentence."""
    folder = tmp_path / "disk"
    mounted(folder, "size=1m")
    try:
        subprocess.run(["/bin/mount", "-o", "remount,ro", str(folder)], check=True)
        with pytest.raises(
            CheckpointSpaceError, match="checkpoints cannot be written there: read-only file system; give"
        ):
            Manager(folder, x=torch.zeros(1))
    finally:
        subprocess.run(["/bin/umount", str(folder)], check=True)
