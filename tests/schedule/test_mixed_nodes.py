"""Nodes that differ in speed and size: described, scheduled by their speed, simulated as they are, used by runs."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainwright as tw
from trainwright.cluster.device import NodeShape
from trainwright.engine.protocol import node_shapes
from trainwright.engine.simulated.simulation import simulate
from trainwright.errors import InputError
from trainwright.schedule.allocator.device_allocator import DeviceAllocator, RunningTrial
from trainwright.schedule.allocator.mixed_nodes import arrange_slots, node_slots, slot_speeds
from trainwright.schedule.policies.resizing import use_faster_nodes

SHAPES = st.lists(st.builds(NodeShape, st.integers(1, 6), st.sampled_from([1.0, 0.5, 0.25])), min_size=1, max_size=6)
POLICIES = [tw.Fixed(1), tw.Fixed(2), tw.Fixed(3), tw.Doubling(), tw.MarginalGain(start=2)]


@given(shapes=SHAPES, policy=st.sampled_from(POLICIES), draw=st.data())
def test_blocks_are_disjoint_of_one_speed_and_come_back(shapes, policy, draw):
    """Whatever is taken, grown and given back: slots are held once, and mixed only where no kind has so many."""
    nodes = tuple(shapes)
    slots, speeds = sum(node.devices for node in nodes), slot_speeds(nodes)
    free_slots = arrange_slots(nodes, policy)
    free, held = free_slots.free, []
    kinds = [sum(other.devices for other in nodes if other == node) for node in nodes]
    for _ in range(12):
        what = draw.draw(st.sampled_from(["take", "grow", "give"]))
        if what == "take" and (block := free_slots.take(policy.start)) is not None:
            held.append(block)
        elif what == "grow" and held:
            old = held.pop(0)
            block = free_slots.grow(old, 2 * len(old))
            if block is not None:
                free_slots.give(set(old).difference(block))
            held.append(block or old)
        elif what == "give" and held:
            free_slots.give(held.pop())
        taken = [slot for block in held for slot in block]
        assert len(taken) == len(set(taken))
        assert set(taken) <= set(range(slots))
        for block in held:
            mixed = speeds and len({speeds[slot] for slot in block}) > 1
            assert not mixed or len(block) > max(kinds)
    free_slots.give([slot for block in held for slot in block])
    assert free_slots.free == free


def test_the_fastest_come_first_and_a_lost_node_is_left_out():
    nodes = (NodeShape(2, 0.5), NodeShape(4, 1.0), NodeShape(2, 0.5))
    free_slots = arrange_slots(nodes, tw.MarginalGain())
    free_slots.withdraw(node_slots(nodes)[0])
    taken = [free_slots.take(1) for _ in range(7)]
    assert taken == [(2,), (3,), (4,), (5,), (6,), (7,), None]


def resized(nodes, block, size):
    """Return what a trial on a block has after it wanted `size` devices."""
    policy = tw.MarginalGain(start=2)
    allocator = DeviceAllocator(
        policy, None, arrange_slots(nodes, policy), slots=8, rungs=(1, 8), survival=lambda _: (0.5,),
        speeds=slot_speeds(nodes),
    )  # fmt: skip
    assert allocator.free_slots.take(len(block)) == block
    running = allocator.running[0] = RunningTrial(trial=0, block=block, start_epoch_seconds=100.0)
    free = allocator.free
    done = allocator.resize(running, size)
    assert allocator.free == free - (running.size - len(block))
    assert allocator.touched == ({0} if done else set()), "the planner reads anew what has changed"
    return done


def test_a_gang_takes_slower_members_only_if_that_pays():
    """Twice the devices are 1.4 times as fast: worth it at a speed of 0.9, not of 0.5."""
    assert resized((NodeShape(2, 1.0), NodeShape(2, 0.9)), (0, 1), 4)
    assert not resized((NodeShape(2, 1.0), NodeShape(2, 0.5)), (0, 1), 4)


def test_as_many_move_to_faster_nodes_as_fit_there():
    """Four fast devices are free: two of three trials of two slow ones each are asked to look in."""
    nodes, policy = (NodeShape(4, 1.0), NodeShape(6, 0.5)), tw.MarginalGain(start=2)
    allocator = DeviceAllocator(
        policy, None, arrange_slots(nodes, policy), slots=10, rungs=(1, 8), survival=lambda _: (0.5,),
        speeds=slot_speeds(nodes),
    )  # fmt: skip
    fast = allocator.free_slots.take(4)
    for trial in range(3):
        block = allocator.free_slots.take(2)
        allocator.running[trial] = RunningTrial(trial=trial, block=block, epoch=trial, start_epoch_seconds=100.0)
    allocator.free_slots.give(fast)
    use_faster_nodes(allocator)
    # Those with most to do.
    assert [trial for trial, running in allocator.running.items() if running.replans] == [0, 1]


CLUSTER = tw.Cluster(8, 4, node_speeds=(1.0, 0.4) * 4)


@pytest.mark.parametrize("policy", [tw.Doubling(), tw.MarginalGain()], ids=lambda policy: type(policy).__name__)
def test_a_policy_that_knows_the_speeds_ends_earlier(policy, monkeypatch):
    """Trials begin on the fast nodes, and move to them when these come free: at least a seventh of the time less."""
    setting = tw.Simulated(cluster=CLUSTER, task_devices=1, scaling=tw.Scaling(alpha=0.7))
    scheduler = tw.Scheduler(tw.ASHA(max_epochs=27), policy)
    known = [simulate(scheduler, setting, trials=32, seed=seed) for seed in range(6)]

    def unaware(nodes, policy, source, **settings):
        free = policy.free_slots(CLUSTER.devices, CLUSTER.devices_per_node)
        return DeviceAllocator(policy, source, free, slots=CLUSTER.devices, **settings)

    monkeypatch.setattr(DeviceAllocator, "on", unaware)
    unknown = [simulate(scheduler, setting, trials=32, seed=seed) for seed in range(6)]
    assert sum(run.makespan_seconds for run in known) < 6 / 7 * sum(run.makespan_seconds for run in unknown)


def test_simulated_as_they_are():
    """An epoch takes longer on a slow node, nodes of several sizes are used whole, and one that fails comes back."""
    task = tw.Parametric(epoch_seconds=10.0, speed_jitter=0.0)
    cluster = tw.Cluster(2, 4, node_devices=(4, 2), node_speeds=(1.0, 0.5))
    assert (cluster.devices, cluster.node_shapes) == (6, (NodeShape(4, 1.0), NodeShape(2, 0.5)))
    setting = tw.Simulated(cluster=cluster, task=task, restart_seconds=0.0)
    run = simulate(tw.Scheduler(tw.FixedEpochs(3)), setting, trials=6, seed=0)
    assert {hold.block[0]: hold.end for hold in run.gantt} == {0: 30, 1: 30, 2: 30, 3: 30, 4: 60, 5: 60}
    failing = replace(setting, node_mtbf_seconds=50.0, repair_seconds=5.0)
    assert simulate(tw.Scheduler(tw.FixedEpochs(3), tw.MarginalGain()), failing, trials=12, seed=0).full == 12


def test_described_in_a_file_and_refused(tmp_path):
    cluster = replace(tw.Cluster.preset("dgx-a100", nodes=3), node_devices=(8, 8, 4), node_speeds=(1.0, 0.5, 0.5))
    cluster.save(tmp_path / "mixed.toml")
    assert tw.Cluster.load(tmp_path / "mixed.toml") == cluster
    for wrong, sentence in (
        ({"node_speeds": (1.0,)}, "Cluster.node_speeds: got .1.0.; allowed: one for each of the 2 nodes"),
        ({"node_speeds": (1.0, 0.0)}, "Cluster.node_speeds: got .*; allowed: a list of numbers > 0"),
        (
            {"node_devices": (2, 3)},
            "Cluster.node_devices: got .2, 3.; allowed: numbers of which the largest is devices_per_node=4",
        ),
    ):
        with pytest.raises(InputError, match=sentence):
            tw.Cluster(2, 4, **wrong)
    with pytest.raises(InputError, match=r"Local.speeds: got {'cpu:1': 0}; allowed: speeds > 0 by patterns"):
        tw.Local(workers=2, speeds={"cpu:1": 0})


def train(trial):
    """Sleep for an epoch."""
    for epoch in trial.epochs():
        time.sleep(0.05)
        trial.report(loss=trial.number + 1 / epoch)


def test_a_real_run_uses_the_slow_slot_last(tmp_path):
    """With a slow worker described, three trials at a time never begin on it; with four it has one."""
    engine = tw.Local(workers=4, gpus=(), speeds={"cpu:3": 0.25, "cpu:[01]": 1.0})
    assert node_shapes(engine) == (NodeShape(3, 1.0), NodeShape(1, 0.25))
    used = {}
    for trials in (3, 4):
        study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory=tmp_path / str(trials), seed=0)
        study.run(train, trials=trials, scheduler=tw.FixedEpochs(2), engine=engine, progress=False)
        used[trials] = sorted(
            name for trial in study.trials for lease in trial.leases.values() for name in lease.devices
        )
    assert used == {3: ["cpu:0", "cpu:1", "cpu:2"], 4: ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]}
