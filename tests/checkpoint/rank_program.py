"""What the ranks of the tests do: `python rank_program.py FOLDER WHAT ARGUMENT...`, with RANK and WORLD_SIZE set.

`launch` starts them. Every tensor of the state has values that follow from its name, so any rank can tell whether it
holds the right ones.
"""

import hashlib
import os
import random
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from trainwright.checkpoint import CheckpointConfig, Manager
from trainwright.checkpoint.manifest import Manifest
from trainwright.checkpoint.owner import Owner
from trainwright.checkpoint.save.snapshot import Buffer
from trainwright.checkpoint.tools.formats.format import equal_bits
from trainwright.errors import CheckpointCorruptError, CheckpointError, CheckpointMismatchError
from trainwright.publishing import FileLayer

LAYOUTS = ("ddp", "fsdp", "shard1", "replicate")
QUIET = CheckpointConfig(writer="sync", interval=1_000_000, timeout_seconds=60.0)
WAITING = CheckpointConfig(interval=1_000_000, timeout_seconds=60.0, on_nonfinite="save")


def launch(folder, world, *arguments, timeout=240, victim=None, after=0.0):
    """Run `what` on so many ranks; return their exit statuses and what they said.

    A `victim` among them is killed so many seconds `after` they reported something.
    """
    folder.mkdir(exist_ok=True)
    rendezvous = folder / f"rendezvous-{time.monotonic_ns()}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(world), "RENDEZVOUS": str(rendezvous)}
    command = [sys.executable, __file__, str(folder), *map(str, arguments)]
    ranks = [
        subprocess.Popen(
            command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(world)
    ]
    if victim is not None:
        watch = time.monotonic() + timeout
        while not (folder / "reported").exists() and ranks[0].poll() is None and time.monotonic() < watch:
            time.sleep(0.01)
        time.sleep(after)
        ranks[victim].kill()
    deadline = time.monotonic() + timeout
    said = []
    for process in ranks:
        try:
            said.append(process.communicate(timeout=max(1.0, deadline - time.monotonic()))[0])
        except subprocess.TimeoutExpired:
            process.kill()
            said.append(process.communicate()[0] + "\nno end in sight")
    return [process.returncode for process in ranks], "\n".join(said)


def reference(name, shape):
    """Return the values of a tensor, from its name alone."""
    seed = int(hashlib.blake2b(name.encode(), digest_size=7).hexdigest(), 16)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Net(nn.Module):
    """Uneven dims, a buffer, a number, and two names for one weight."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 7, bias=False))
        self.head = nn.Linear(7, 3)
        self.head.register_parameter("tied", self.head.weight)

    def forward(self, batch):
        return self.head(self.body(batch))


def build(layout, seed=0, device_mesh=None):
    """Return a model laid out over the ranks, and its optimizer with state."""
    torch.manual_seed(seed)
    model = Net()
    mesh = device_mesh or (init_device_mesh("cpu", (dist.get_world_size(),)) if dist.is_initialized() else None)
    if layout == "ddp":
        model = DistributedDataParallel(model)
    elif layout == "fsdp":
        for part in (model.body, model.head):
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif layout == "hsdp":
        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
        for part in (model.body, model.head, model):
            fully_shard(part, mesh=grid)
    elif layout in {"shard1", "replicate", "grid"}:
        if layout == "grid":
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
        known = {}
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    places = {
                        "replicate": [Replicate()],
                        "shard1": [Shard(parameter.ndim - 1)],
                        "grid": [Shard(0), Shard(1) if parameter.ndim > 1 else Replicate()],
                    }[layout]
                    if id(parameter) not in known:
                        known[id(parameter)] = nn.Parameter(distribute_tensor(parameter.detach(), mesh, places))
                    module._parameters[name] = known[id(parameter)]
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return model, optimizer


def tensors_of(model, optimizer):
    """Return every tensor of the state by a name that no layout changes."""
    plain = {name.removeprefix("module."): item for name, item in model.named_parameters()}
    buffers = {name.removeprefix("module."): item for name, item in model.named_buffers()}
    moments = {
        f"{name}.{key}": value for name, parameter in plain.items() for key, value in optimizer.state[parameter].items()
    }
    return plain | buffers | moments


@torch.no_grad()
def fill(model, optimizer):
    """Give every tensor the values of its name."""
    for name, tensor in tensors_of(model, optimizer).items():
        value = reference(name, tensor.shape).to(tensor.dtype)
        if isinstance(tensor, DTensor):
            value = distribute_tensor(value, tensor.device_mesh, tensor.placements)
        tensor.copy_(value)


def check(model, optimizer):
    """Compare every tensor with the values of its name, bit by bit."""
    for name, tensor in tensors_of(model, optimizer).items():
        full = tensor.detach()
        full = full.full_tensor() if isinstance(full, DTensor) else full
        assert equal_bits(full, reference(name, full.shape).to(full.dtype)), name


def save(folder, layout, config=QUIET):
    model, optimizer = build(layout)
    fill(model, optimizer)
    with Manager(folder, config=config, model=model, optimizer=optimizer, note={"layout": layout}) as manager:
        manager.steps = 5
        manager.save(wait=True).committed.result()


def restore(folder, layout, *, fresh=False, mode="best_effort"):
    """Restore into another model; `fresh`: whose optimizer has no state yet."""
    model, optimizer = build(layout, seed=1)
    if fresh:
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    note = {}
    with Manager(folder, config=QUIET, model=model, optimizer=optimizer, note=note) as manager:
        restored = manager.restore(mode=mode)
        assert manager.steps == restored.step == 5
    assert note == {"layout": folder.name}
    check(model, optimizer)
    return restored


def save_all(folder):
    for layout in LAYOUTS:
        save(folder / layout, layout)


def restore_all(folder, *sources):
    """Restore what each source saved, into every layout, with and without optimizer state."""
    for source in sources:
        for layout in LAYOUTS:
            restored = restore(folder / source, layout, fresh=layout == "fsdp")
            same = restored.manifest.world_size == dist.get_world_size()
            assert {one.item for one in restored.differences} == (set() if same else {"rng"})


def cross(folder):
    """Save in every layout and restore in some others; what one process saved is there as `plain`."""
    save_all(folder)
    dist.barrier()
    for source, layout in (("plain", "fsdp"), ("fsdp", "ddp"), ("ddp", "fsdp"), ("fsdp", "shard1"), ("shard1", "fsdp")):
        restore(folder / source, layout, fresh=source == "ddp")


@contextmanager
def refused(error, *words):
    with pytest.raises(error) as refusal:
        yield
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def published(folder):
    dist.barrier()
    return sorted(path.name for path in folder.glob("*") if path.name.startswith(("step", ".")))


def meshes(folder):
    """Save on meshes of two dims, with replicas and without, and restore in other layouts."""
    for layout in ("hsdp", "grid"):
        save(folder / layout, layout)
        dist.barrier()
        for other in ("hsdp", "grid", "fsdp", "ddp"):
            assert restore(folder / layout, other).differences == ()


def endless(folder):
    """Save one step after the other until killed; the first rank tells what was committed."""
    value = torch.zeros(1 << 18, dtype=torch.int64)
    config = CheckpointConfig(writer="thread", interval=1_000_000, on_error="raise", timeout_seconds=5.0)
    with Manager(folder / "endless", config=config, value=value) as manager:
        manager.restore()
        while True:
            manager.steps += 1
            value.fill_(manager.steps)
            manager.save(wait=True).committed.result()
            if dist.get_rank() == 0:
                with (folder / "reported").open("a") as file:
                    file.write(f"{manager.steps}\n")


def troubles(folder):
    """Whatever goes wrong on one rank goes wrong on all, and nothing is published."""
    rank = dist.get_rank()
    model, optimizer = build("fsdp")
    folder /= "troubles"
    value = torch.ones(4)

    class Full(FileLayer):
        failing = False

        def write(self, handle, data):
            if self.failing and rank == 1:
                raise OSError(28, "No space left on device")
            super().write(handle, data)

    layer = Full()
    config = CheckpointConfig(writer="sync", interval=1_000_000, on_error="raise", timeout_seconds=60.0)
    items = {"model": model, "optimizer": optimizer, "value": value}
    with Manager(folder, config=config, files=layer, **items) as manager:
        manager.save(wait=True)
        good = published(folder)
        assert len(good) == 1
        with torch.no_grad():
            model.head.weight._local_tensor[0, 0] = torch.nan if rank == 1 else 0.0
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            handle = manager.save(wait=True)
        assert "rank 1: step 0 is not saved: model.head.weight" in str(told[-1].message)
        assert handle.verdict.startswith("refused: rank 1")
        assert published(folder) == good
        with torch.no_grad():
            model.head.weight._local_tensor[0, 0] = 0.0
        value[2] = rank
        with refused(CheckpointError, "value is not the same on all ranks"):
            manager.save(wait=True)
        value[2] = 0.0
        manager.steps = rank
        with refused(CheckpointError, "rank 1 saves step 1", "rank 0 step 0"):
            manager.save(wait=True)
        manager.steps = 7
        layer.failing = True
        with refused(CheckpointError, "no space left on device; the one before is kept"):
            manager.save(wait=True)
        assert published(folder) == good
        layer.failing = False
        manager.save(wait=True)
        assert len(published(folder)) == 2


def randomness(folder):
    """Each rank has its own generators back; on other numbers of ranks they are new ones, told and reproducible."""
    rank, world = dist.get_rank(), dist.get_world_size()
    value = torch.ones(1)

    def draws():
        return [random.random(), float(torch.rand(1)), float(np.random.rand())]  # noqa: NPY002 -- users draw from it

    torch.manual_seed(rank)
    random.seed(rank)
    np.random.seed(rank)  # noqa: NPY002 -- likewise
    with Manager(folder / f"random-{world}", config=QUIET, value=value) as manager:
        manager.save(wait=True).committed.result()
        expected = draws()
        draws()
        assert manager.restore().differences == ()
        assert draws() == expected
    with Manager(folder / "random-1", config=QUIET, value=value) as manager:
        with refused(CheckpointMismatchError, f"rng was '1 rank' and is '{world} ranks' (draws other random numbers)"):
            manager.restore()
        (difference,) = manager.restore(mode="best_effort").differences
        assert difference.item == "rng"
        first = draws()
        manager.restore(mode="best_effort")
        assert draws() == first
    found = [None] * world
    dist.all_gather_object(found, first)
    assert len({tuple(one) for one in found}) == world


def own_values(folder):
    """Give each rank its own plain value back."""
    rank = dist.get_rank()
    note, folder = {"rank": rank, "list": [1, 2]}, folder / "own"
    with Manager(folder, config=QUIET, note=note, same={"a": 1}) as manager:
        manager.save(wait=True).committed.result()
        note["rank"] = -1
        assert manager.restore().differences == ()
        assert note == {"rank": rank, "list": [1, 2]}


def held(folder):
    """Restore what one rank still has in memory without reading it: the others get it from there."""
    rank, buffer = dist.get_rank(), Buffer()
    model, optimizer = build("ddp")
    fill(model, optimizer)
    owner = Owner(folder=folder / "held", buffer=buffer)
    with Manager(owner, config=QUIET, model=model, optimizer=optimizer) as manager:
        path = manager.save(wait=True).committed.result().path
    dist.barrier()
    (record,) = [each for each in Manifest.read(path).tensors if each.name == "model.body.0.weight"]
    with (path / record.shards[0].file).open("r+b") as file:
        file.seek(record.shards[0].start)
        file.write(bytes(record.shards[0].bytes))
    dist.barrier()
    if rank != 0:
        buffer.release()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainwright.checkpoint.ranks.ranks._SENT_BYTES", 1)
        model, optimizer = build("ddp", seed=1)
        with Manager(owner, config=QUIET, model=model, optimizer=optimizer) as manager:
            manager.restore()
        check(model, optimizer)
    buffer.release()
    with Manager(owner, config=QUIET, model=model, optimizer=optimizer) as manager, refused(CheckpointCorruptError):
        manager.restore()


def damaged(folder):
    """If what one rank reads is damaged, all go back to the one before; with none left, all say so."""
    folder /= "damaged"
    model, optimizer = build("fsdp")
    fill(model, optimizer)
    with Manager(folder, config=QUIET, model=model, optimizer=optimizer) as manager:
        for step in (1, 2):
            manager.steps = step
            manager.save(wait=True).committed.result()
        if dist.get_rank() == 0:
            spoil(folder / "step-000000000002" / "rank-00001.safetensors")
        dist.barrier()
        assert manager.restore().step == 1
        check(model, optimizer)
        assert [name[:8] for name in published(folder)] == [".bad-ste", "step-000"]
        dist.barrier()
        if dist.get_rank() == 0:
            spoil(folder / "step-000000000001" / "rank-00000.safetensors")
        dist.barrier()
        with refused(CheckpointCorruptError, "every checkpoint is damaged and quarantined"):
            manager.restore()


def mismatched(folder):
    """If the state of one rank does not fit, none is restored."""
    folder /= "mismatched"
    with Manager(folder, config=QUIET, value=torch.ones(3)) as manager:
        manager.save(wait=True).committed.result()
    value = torch.zeros(4 if dist.get_rank() == 1 else 3)
    manager = Manager(folder, config=QUIET, value=value)
    with manager, refused(CheckpointMismatchError, "value was"):
        manager.restore()
    assert not value.any()


def storm(folder):
    """Save beside training whose ranks meet in barriers all the time; each checkpoint is one moment's."""
    folder /= "storm"
    model, optimizer = build("ddp")
    count = torch.zeros(1, dtype=torch.int64)
    items = {"model": model, "optimizer": optimizer, "count": count}
    saved = {}
    with Manager(folder, config=WAITING, **items) as manager:
        for step in range(30):
            model(torch.full((4, 7), float(step))).square().sum().backward()
            optimizer.step()
            count += 1
            dist.barrier()
            manager.step()
            if step % 5 == 0:
                saved[manager.steps] = model.module.head.weight.detach().clone()
                manager.save()
            dist.barrier()
        manager.drain()
        assert [record.verdict for record in manager.history] == ["good"] * 6
        restored = manager.restore()
        assert (restored.step, int(count)) == (26, 26)
        assert equal_bits(model.module.head.weight.detach(), saved[26])


def seconds(folder):
    """Save by the clock: due for all ranks at the same step, once each time."""
    folder /= "seconds"
    config = CheckpointConfig(writer="sync", interval=0.05 + dist.get_rank(), timeout_seconds=60.0)
    with Manager(folder, config=config, value=torch.ones(1)) as manager:
        for _ in range(100):
            manager.step()
            time.sleep(0.002)
        steps = [record.step for record in manager.history]
        assert all(record.verdict == "good" for record in manager.history)
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, steps)
    assert steps
    assert found[0] == found[1]
    assert len(set(steps)) == len(steps)


def alone(folder):
    """Call save on one rank alone: it fails after the time that the settings give, and says who did not come."""
    config = CheckpointConfig(writer="sync", interval=1_000_000, on_error="raise", timeout_seconds=3.0)
    with Manager(folder / "alone", config=config, value=torch.ones(1)) as manager:
        if dist.get_rank() == 0:
            with refused(CheckpointError, "not all of the 2 ranks called save within 3 s", "Ranks 1"):
                manager.save(wait=True)
        else:
            time.sleep(5)


def spoil(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def everything(folder):
    for what in (cross, troubles, randomness, own_values, held, damaged, mismatched, storm, seconds):
        sys.stdout.write(f"{what.__name__}\n")
        what(folder)
        dist.barrier()


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", module="torch")
    where, program, *rest = sys.argv[1:]
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.environ['RENDEZVOUS']}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=60),
    )
    globals()[program](Path(where), *rest)
    dist.destroy_process_group()
