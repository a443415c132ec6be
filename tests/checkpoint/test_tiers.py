"""Tiers: what is saved near the process gets to the folder, and nothing good is lost on the way."""

import contextlib
import errno
import os
import shutil
import threading
import warnings
from pathlib import Path

import pytest
import torch
from faulty_files import flip_bit

from trainwright.checkpoint import CheckpointConfig, Manager, Retention, Tier
from trainwright.checkpoint.manifest import Manifest
from trainwright.checkpoint.save.publish import Published
from trainwright.checkpoint.tools.tiers import copy_checkpoint, refuse_several_nodes
from trainwright.checkpoint.tools.verify import verify
from trainwright.errors import CheckpointConfigError, CheckpointCorruptError, CheckpointError, CheckpointSpaceError
from trainwright.publishing import FileLayer


class Layer(FileLayer):
    """A file system on which new checkpoints below some folders have to wait, or fail."""

    def __init__(self):
        self.gates, self.full = {}, set()

    def create(self, path):
        for folder, gate in self.gates.items():
            if path.is_relative_to(folder) and path.parent.name.startswith(".tmp-"):
                gate.wait()
        for folder in self.full:
            if path.is_relative_to(folder) and path.parent.name.startswith(".tmp-"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().create(path)


@pytest.fixture
def place(tmp_path):
    """Give a folder and two tiers, with managers of a tensor that tells its step."""
    made = TensorPlace(tmp_path)
    yield made
    made.layer.full.clear()
    for manager in made.managers:
        with contextlib.suppress(CheckpointError), warnings.catch_warnings(action="ignore"):
            manager.close()


class TensorPlace:
    def __init__(self, home):
        self.folder, self.near, self.far = home / "runs", home / "near", home / "far"
        self.layer = Layer()
        self.x = torch.zeros(50_000)
        self.managers = []

    def manager(self, *tiers, **settings):
        tiers = tiers or (Tier(self.near),)
        config = CheckpointConfig(writer="thread", interval=10**9, tiers=tiers, **settings)
        self.managers.append(Manager(self.folder, config=config, files=self.layer, x=self.x))
        return self.managers[-1]

    def save(self, manager, step, **how):
        manager.steps = step
        self.x.fill_(step)
        handle = manager.save(**how)
        handle.committed.result()
        return handle

    def restored(self, *tiers, **settings):
        """Return what a new process finds, once the value is seen to be that step's."""
        self.x.fill_(-1)
        manager = self.manager(*tiers, **settings)
        found = manager.restore()
        assert (self.x == found.step).all()
        manager.drain()
        return found


def steps(folder):
    return sorted(int(path.name[5:]) for path in folder.glob("**/step-*"))


def test_saved_near_and_carried_on(place):
    """A save is over in the tier; the drain brings it to the folder with the same manifest, and the end clears up."""
    place.layer.gates[place.folder] = gate = threading.Event()
    with place.manager() as manager:
        handle = place.save(manager, 1)
        assert not handle.drained.done()
        assert (steps(place.near), steps(place.folder)) == ([1], [])
        gate.set()
        arrived = handle.drained.result()
        assert steps(place.folder) == [1]
        assert arrived.manifest == handle.manifest
        assert verify(place.folder).good
        assert manager.history[0].tier.startswith(str(place.near))
    assert not list(place.near.iterdir())
    assert place.restored().step == 1


def test_wait_means_the_folder(place):
    """With wait=True the checkpoint is there when save returns, as whoever goes on elsewhere needs it."""
    manager = place.manager()
    place.save(manager, 3, wait=True)
    assert steps(place.folder) == [3]


def test_restored_from_the_nearest(place):
    """After a crash the tier's newest is taken, though it never got further; then it is carried on."""
    place.layer.gates[place.folder] = gate = threading.Event()
    crashed = place.manager()
    place.save(crashed, 1)
    place.save(crashed, 2)
    found_before = steps(place.folder)
    place.layer = Layer()
    found = place.restored()
    assert found_before == []
    assert found.step == 2
    assert found.path.is_relative_to(place.near)
    assert steps(place.folder) == [2]
    with warnings.catch_warnings(action="ignore"):  # the dead one carries on what is not its own any more
        gate.set()
        crashed.drain()


def test_a_tier_that_vanished(place):
    """The newest that got to the folder is taken: the node is gone with what it had."""
    place.layer.gates[place.folder] = gate = threading.Event()
    gate.set()
    crashed = place.manager()
    place.save(crashed, 1, wait=True)
    gate.clear()
    place.save(crashed, 2)
    shutil.rmtree(place.near)
    place.layer = Layer()
    assert place.restored().step == 1
    gate.set()
    with pytest.warns(UserWarning, match=r"cannot be carried on: no such file or directory"):
        crashed.drain()


def test_a_damaged_copy(place):
    """What is damaged in the tier is quarantined there, and its copy in the folder taken; it is never carried on."""
    manager = place.manager()
    place.save(manager, 1, wait=True)
    (data,) = place.near.glob("**/*.safetensors")
    flip_bit(data, 8 * 100_000)
    found = place.restored()
    assert found.step == 1
    assert found.path.is_relative_to(place.folder)
    assert list(place.near.glob("**/.bad-step*"))


def test_damaged_before_its_turn(place):
    """The drain compares what it reads: it publishes nothing that is not as it was saved."""
    place.layer.gates[place.folder] = gate = threading.Event()
    manager = place.manager()
    handle = place.save(manager, 1)
    (data,) = place.near.glob("**/*.safetensors")
    flip_bit(data, 8 * 100_000)
    gate.set()
    assert isinstance(handle.drained.exception(), CheckpointCorruptError)
    with pytest.warns(UserWarning, match="safetensors is damaged"):
        manager.drain()
    assert steps(place.folder) == []
    assert not list(place.folder.glob(".tmp*"))


def test_a_full_tier(place):
    """Saves go on to the next tier or to the folder, with one warning, and none is lost."""
    manager = place.manager(Tier(place.near), Tier(place.far))
    place.save(manager, 1, wait=True)
    place.layer.full.add(place.near)
    with pytest.warns(UserWarning, match=r"near: checkpoints cannot be written to this tier: no space left"):
        place.save(manager, 2, wait=True)
    assert steps(place.folder) == [1, 2]
    assert steps(place.far) == [2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        place.save(manager, 3, wait=True)
    assert steps(place.folder) == [2, 3]


def test_a_full_folder(place):
    """What cannot be carried on stays in the tier, pinned ones too; it goes when there is room again."""
    manager = place.manager()
    place.save(manager, 1, wait=True)
    place.layer.full.add(place.folder)
    pinned = place.save(manager, 2, pin="rung 1")
    assert isinstance(pinned.drained.exception(), CheckpointSpaceError)
    with pytest.warns(UserWarning, match=r"cannot be carried on: no space left on device; it stays there"):
        later = place.save(manager, 3)
    assert isinstance(later.drained.exception(), CheckpointSpaceError)
    with pytest.warns(UserWarning, match="cannot be carried on"):
        manager.drain()
    assert (steps(place.near), steps(place.folder)) == ([2, 3], [1])
    place.layer.full.clear()
    manager.close()
    assert steps(place.folder) == [2, 3]
    assert not list(place.near.iterdir())


def test_on_error_raise(place):
    """With on_error="raise" the next call raises what the drain ran into."""
    manager = place.manager(on_error="raise")
    place.layer.full.add(place.folder)
    place.save(manager, 1).drained.exception()
    with pytest.raises(CheckpointSpaceError, match="cannot be carried on"):
        manager.step()


def test_the_newest_first(place):
    """What the tier drops before its turn is passed over; what is pinned is carried on all the same."""
    place.layer.gates[place.folder] = gate = threading.Event()
    manager = place.manager(retention=Retention(last=9))
    handles = [place.save(manager, step, pin="kept" if step == 3 else None) for step in range(1, 7)]
    gate.set()
    manager.drain()
    assert steps(place.folder) == [1, 3, 6]  # the first was in hand
    assert [handle.drained.result() is None for handle in handles] == [False, True, False, True, True, False]
    assert steps(place.near) == [6]


def test_every_second_one(place):
    """Of so many saves one is carried on, and the last one in the end."""
    manager = place.manager(Tier(place.near, drain_every=2), retention=Retention(last=9))
    for step in range(1, 6):
        place.save(manager, step).drained.result()
    assert steps(place.folder) == [2, 4]
    manager.close()
    assert steps(place.folder) == [2, 4, 5]


def test_two_tiers(place):
    """Each holds what its retention says; the nearest is restored from while it is there, then the next."""
    tiers = Tier(place.near), Tier(place.far, retention=Retention(last=2))
    manager = place.manager(*tiers)
    for step in (1, 2, 3):
        place.save(manager, step, wait=True)
    assert (steps(place.near), steps(place.far), steps(place.folder)) == ([3], [2, 3], [2, 3])
    assert place.restored(*tiers).path.is_relative_to(place.near)
    shutil.rmtree(place.near)
    assert place.restored(*tiers).path.is_relative_to(place.far)
    shutil.rmtree(place.far)
    assert place.restored(*tiers).path.is_relative_to(place.folder)


def test_a_folder_that_was_removed(place):
    """Who removes the folder begins anew: what tiers still have is of another one."""
    manager = place.manager()
    place.save(manager, 1, wait=True)
    shutil.rmtree(place.folder)
    assert place.manager().restore() is None


def test_the_pace_of_the_drain(place, tmp_path, monkeypatch):
    """It sleeps as long as its bytes may take."""
    with place.manager() as manager:
        path = place.save(manager, 1, wait=True).drained.result().path
    slept = []
    monkeypatch.setattr("trainwright.checkpoint.tools.tiers.time.sleep", slept.append)
    source = Published(path=path, manifest=Manifest.read(path))
    copy_checkpoint(FileLayer(), source, tmp_path / "slow", 1e3)
    assert max(slept) == pytest.approx(source.manifest.size / 1e3, rel=0.05)


def test_memory():
    """The node's memory is a tier where the system has a file system in it."""
    if not Path("/dev/shm").is_dir():
        with pytest.raises(CheckpointConfigError, match="this system has no"):
            Tier.memory()
    else:
        assert str(Tier.memory(drain_every=3).folder) == "/dev/shm"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Tier(""), "Tier.folder: got ''"),
        (lambda: Tier("x", drain_every=0), "Tier.drain_every: got 0; allowed: a whole number >= 1"),
        (lambda: Tier("x", drain_bytes_per_second=0.0), "Tier.drain_bytes_per_second: got 0.0; allowed: a number"),
        (lambda: CheckpointConfig(tiers=["x"]), r"CheckpointConfig.tiers: got \['x'\]; allowed: a tuple of tiers"),
        (lambda: refuse_several_nodes(["a", "b"]), r"the ranks are on 2 nodes \(a, b\); allowed: tiers where all"),
    ],
)
def test_refusals(make, sentence):
    """A sentence each, before anything is trained."""
    with pytest.raises(CheckpointConfigError, match=sentence):
        make()


def test_a_tier_that_cannot_be_written(place):
    """It is refused at once, as a folder is."""
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be written there: .*; give a folder that can"):
        place.manager(Tier("/proc/none"))
