"""Many small checks on one group of ranks: starting a group costs seconds, a check milliseconds."""

import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from rank_processes import on_processes
from trainwright.plan import Degrees, ParallelPlan

WAIT = timedelta(seconds=60)


def plan_of(strategy="", **settings):
    """Return a plan: degrees by name, and what else a plan has."""
    names = Degrees.__dataclass_fields__
    degrees = Degrees(**{name: value for name, value in settings.items() if name in names})
    rest = {name: value for name, value in settings.items() if name not in names}
    shard = {"shard": degrees.data} if rest.get("zero") and "shard" not in rest else {}
    strategy = strategy or "+".join(name for name in names if getattr(degrees, name) > 1) or "serial"
    return ParallelPlan(strategy=strategy, degrees=degrees, **({"batch": 8, "micro_batch": 8} | shard | rest))


def on_ranks(world, checks, folder):
    """Run every check, a function of (rank, world), on all ranks; return what each rank found, by name.

    A check that fails ends its rank: the others would not meet it again. What it raised is found as text.
    """
    store = folder / f"store-{world}"
    found = on_processes(_member, [(rank, world, checks, store) for rank in range(world)])
    return {name: [found[rank].get(name, "not reached") for rank in range(world)] for name in checks}


def alone_among(world, checks):
    """Run every check on rank 0 of a group that only seems to have `world` ranks; return what it found, by name."""
    [found] = on_processes(_pretending, [(world, checks)])
    return {name: found.get(name, "not reached") for name in checks}


def _pretending(world, checks):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)
    found = {}
    for name, check in checks.items():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
        try:
            found[name] = check(0, world)
        except Exception:  # noqa: BLE001 -- it is told
            found[name] = traceback.format_exc()
        dist.destroy_process_group()
    return found


def by_group(groups, tmp_path_factory):
    """Return what gives a group's results by its name, and runs its checks when it is first asked for."""
    known = {}

    def get(group):
        if group not in known:
            known[group] = on_ranks(*groups[group], tmp_path_factory.mktemp("ranks"))
        return known[group]

    return get


def _member(rank, world, checks, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=WAIT)
    found = {}
    for name, check in checks.items():
        torch.manual_seed(0)
        try:
            found[name] = check(rank, world)
        except Exception:  # noqa: BLE001 -- it is told
            found[name] = traceback.format_exc()
            break
    if len(found) == len(checks):
        dist.destroy_process_group()
    return found
