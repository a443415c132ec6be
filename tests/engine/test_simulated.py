"""The simulated engine: makespans by hand, the formulas of the papers, what must never happen, and equal digests."""

import heapq
import itertools
import math
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.cluster import Cluster
from trainwright.engine.simulated import simulation as module
from trainwright.engine.simulated.settings import Scaling, Simulated
from trainwright.engine.simulated.simulation import simulate
from trainwright.engine.simulated.task import Parametric
from trainwright.errors import EngineError, InputError, SchedulerStalled, TrainwrightError
from trainwright.schedule import (
    ASHA,
    BuddyAllocator,
    DeviceAllocator,
    Doubling,
    DoublingAsPublished,
    Fixed,
    FixedEpochs,
    Hyperband,
    MarginalGain,
    Median,
    Scheduler,
    SuccessiveHalving,
)
from trainwright.schedule.allocator.free_slots import FixedBlocks
from trainwright.schedule.rules.promotion_rule import Judged

SMOOTH = Parametric(epoch_seconds=1.0, speed_jitter=0.0, noise=0.0)


def written(loss, seconds=(1.0,)):
    return _Task(loss, tuple(seconds))


@dataclass(frozen=True)
class _Task:
    loss: object
    epoch_seconds: tuple

    substitutions = 0

    def learning_curves(self, seed):
        return self

    def of(self, trial, params):
        return _Course(self, trial)


@dataclass(frozen=True)
class _Course:
    task: _Task
    trial: int

    def losses(self, epoch):
        return (float(self.task.loss(self.trial, epoch)),)

    def seconds(self, epoch):
        return self.task.epoch_seconds[self.trial % len(self.task.epoch_seconds)] * epoch


def by_hand(seconds, slots):
    """Return when the last of tasks is done that start in order, each on the slot that is free first."""
    free = [0.0] * slots
    for each in seconds:
        heapq.heappush(free, heapq.heappop(free) + each)
    return max(free)


class TestTimes:
    @given(
        seconds=st.lists(st.integers(1, 9), min_size=1, max_size=12),
        nodes=st.integers(1, 3),
        per_node=st.integers(1, 3),
        epochs=st.integers(1, 4),
    )
    def test_makespan_of_fixed_trials_by_hand(self, seconds, nodes, per_node, epochs):
        """Trials of one device and a fixed length take what filling slots in order takes."""
        task = written(lambda trial, epoch: trial, seconds)
        setting = Simulated(cluster=Cluster(nodes, per_node), task=task)
        run = simulate(Scheduler(FixedEpochs(epochs)), setting, trials=len(seconds), seed=0)
        lengths = [each * epochs for each in seconds]
        assert run.makespan_seconds == by_hand(lengths, nodes * per_node)
        assert run.device_seconds == sum(lengths)
        assert run.utilisation == pytest.approx(sum(lengths) / (run.makespan_seconds * nodes * per_node))
        assert run.first_full_seconds == by_hand([min(lengths[: nodes * per_node])], 1)
        assert (run.full, run.resizes, run.stalled) == (len(seconds), 0, ())

    @pytest.mark.parametrize(("resume", "first_full"), [(True, 9.0), (False, 13.0)])
    def test_nine_workers(self, resume, first_full):
        """Promotion with eta 3, r 1, R 9: the first full model after 1 + 2 + 6 with resume, 1 + 3 + 9 without."""
        task = written(lambda trial, epoch: trial)
        setting = Simulated(cluster=Cluster(9, 1), task=task, restart_seconds=0.0, resume=resume)
        rule = ASHA(max_epochs=9, eta=3, kind="promotion")
        assert simulate(Scheduler(rule), setting, trials=200, seed=0).first_full_seconds == first_full

    @pytest.mark.parametrize(
        ("length", "ideal", "costly"), [(4, 2.00, 1.46), (8, 3.20, 2.14), (16, 5.33, 3.29), (32, 9.14, 5.24)]
    )
    @pytest.mark.parametrize(("alpha", "restart"), [(1.0, 0.0), (0.8, 0.25)])
    def test_doubling_in_lock_step(self, length, ideal, costly, alpha, restart):
        """Where just half of all pass each rung together, doubling is as much faster as its formula says."""

        def loss(trial, epoch):  # of those at a rung every other one is bad, the others ever better
            place = trial // epoch
            return 1000 if place % 2 else -place

        trials = 2 * length
        setting = Simulated(
            cluster=Cluster(trials, 4),
            task=written(loss),
            scaling=Scaling(alpha=alpha),
            restart_seconds=restart,
        )
        rule = ASHA(max_epochs=length, min_epochs=1, eta=2)
        run = simulate(Scheduler(rule, DoublingAsPublished(start=4)), setting, trials=trials, seed=0)
        rungs = int(math.log2(length))
        formula = 1 + sum(2**k / 2 ** ((k + 1) * alpha) for k in range(rungs)) + rungs * restart
        assert run.makespan_seconds == pytest.approx(formula, rel=1e-8)
        assert length / run.makespan_seconds == pytest.approx(ideal if alpha == 1.0 else costly, abs=0.006)
        assert run.full == 2
        assert run.resizes == sum(trials // 2 ** (k + 1) for k in range(rungs))

    def test_restarts_take_their_time(self):
        """A promotion costs a restart."""
        task = written(lambda trial, epoch: trial)
        rule = ASHA(max_epochs=3, eta=3, kind="promotion")
        setting = Simulated(cluster=Cluster(3, 1), task=task, restart_seconds=5.0)
        run = simulate(Scheduler(rule), setting, trials=3, seed=0)
        assert run.makespan_seconds == 1 + 5 + 2

    def test_a_new_process_costs_once_a_device(self):
        """The first trial of each device waits for a process, later ones for their own start alone."""
        setting = Simulated(cluster=Cluster(1, 2), task=SMOOTH, start_seconds=1.0, process_seconds=5.0)
        run = simulate(Scheduler(FixedEpochs(10)), setting, trials=4, seed=0)
        assert sorted(hold.end for hold in run.gantt) == [16.0, 16.0, 27.0, 27.0]

    def test_another_number_of_devices_costs_more(self):
        """The one trial grows at its first report; what it waits for then is its restart and the resize."""
        times = []
        for resize in (0.0, 0.5):
            setting = Simulated(
                cluster=Cluster(1, 2), task=SMOOTH, task_devices=1, restart_seconds=0.25, resize_seconds=resize
            )
            run = simulate(Scheduler(ASHA(max_epochs=10, eta=10), MarginalGain()), setting, trials=1, seed=0)
            times.append(run.makespan_seconds)
        assert times == pytest.approx([1 + 0.25 + 9 / 2**0.9, 1 + 0.75 + 9 / 2**0.9])

    def test_stragglers_and_drops(self):
        """Stragglers take longer, never less; at a high rate all trials fail, and the run ends."""
        setting = Simulated(cluster=Cluster(4, 1), task=SMOOTH, stragglers=0.5)
        run = simulate(Scheduler(FixedEpochs(3)), setting, trials=8, seed=0)
        assert run.makespan_seconds > by_hand([3.0] * 8, 4)
        setting = Simulated(cluster=Cluster(4, 1), task=SMOOTH, drops_per_second=100.0)
        run = simulate(Scheduler(ASHA(max_epochs=9)), setting, trials=20, seed=0)
        assert (run.failed, run.full, run.trials) == (20, 0, 20)
        assert run.first_full_seconds == math.inf


POLICIES = [
    Fixed(1),
    Fixed(3),
    Fixed(6),
    Doubling(start=1),
    Doubling(start=2, wait_seconds=0.5),
    MarginalGain(start=1),
    MarginalGain(start=4),
    DoublingAsPublished(start=1),
    DoublingAsPublished(start=2, factor=4),
]
RULES = [
    ASHA(max_epochs=9, min_epochs=1, eta=2),
    ASHA(max_epochs=9, kind="promotion"),
    SuccessiveHalving(max_epochs=9, n=9),
    Hyperband(max_epochs=9),
    Median(min_epochs=2, max_epochs=5),
    Median(min_epochs=2, max_epochs=5),
]


class TestWhatMustNeverHappen:
    @pytest.mark.parametrize("policy", POLICIES, ids=repr)
    @settings(max_examples=12)
    @given(data=st.data())
    def test_grants_clocks_and_ends(self, policy, data):
        """Whatever fails: nobody holds what another holds, time never runs back, and every run ends with all it had."""
        rule = data.draw(st.sampled_from(RULES))
        setting = Simulated(
            cluster=Cluster(data.draw(st.integers(2, 4)), data.draw(st.sampled_from([4, 6]))),
            task=Parametric(epoch_seconds=10.0, noise=0.1),
            restart_seconds=data.draw(st.sampled_from([0.0, 3.0])),
            resume=data.draw(st.booleans()),
            stragglers=data.draw(st.sampled_from([0.0, 0.5])),
            drops_per_second=data.draw(st.sampled_from([0.0, 0.005])),
            node_mtbf_seconds=data.draw(st.sampled_from([None, 100.0])),
            repair_seconds=data.draw(st.sampled_from([0.0, 20.0, 200.0])),
        )
        trials, seed = data.draw(st.integers(1, 14)), data.draw(st.integers(0, 5))
        run, seen = watched(Scheduler(rule, policy), setting, trials, seed)
        assert seen == sorted(seen)
        assert check_gantt(run, setting.cluster) == pytest.approx(run.device_seconds)
        assert run.trials == trials
        assert run.device_seconds >= run.utilisation * run.makespan_seconds * setting.cluster.devices - 1e-6
        if getattr(policy, "mode", "") != "block":
            assert not run.stalled
            assert run.full > 0 or run.failed > 0 or getattr(rule, "kind", "") == "promotion"

    @pytest.mark.parametrize("size", [1, 3, 4, 6, 8, 12, 20])
    @given(data=st.data())
    def test_tiles_lose_nodes(self, size, data):
        """Nodes that are left out take the tiles across them with them, and bring them back once all are back."""
        per_node, nodes = 4, 5
        tiles = FixedBlocks(per_node * nodes, per_node, size)
        whole, out = tiles.free, set()
        for _ in range(data.draw(st.integers(1, 8))):
            node = data.draw(st.integers(0, nodes - 1))
            slots = range(node * per_node, (node + 1) * per_node)
            if node in out:
                out.remove(node)
                tiles.give(slots)
            else:
                out.add(node)
                tiles.withdraw(slots)
            block = tiles.take(size)
            if block is not None:
                assert not out & {slot // per_node for slot in block}
                tiles.give(block)
        for node in out:
            tiles.give(range(node * per_node, (node + 1) * per_node))
        assert tiles.free == whole

    def test_verdicts_are_told_to_the_rule(self, monkeypatch):
        """A rule that pauses or lets go on hears so, as it does from a study."""
        told = []
        fold = ASHA.fold
        monkeypatch.setattr(ASHA, "fold", lambda rule, index, event: told.append(event) or fold(rule, index, event))
        rule = ASHA(max_epochs=3, eta=3, kind="promotion")
        simulate(Scheduler(rule), Simulated(cluster=Cluster(), task=written(lambda n, _: n)), trials=3, seed=0)
        assert [(event.trial, event.pauses) for event in told if isinstance(event, Judged)] == [
            (n, True) for n in range(3)
        ]

    def test_a_stall_is_named(self):
        """The published policy asks for more than there is: the run ends, and says who waits for what."""
        setting = Simulated(cluster=Cluster(4, 4), task=written(lambda trial, epoch: trial))
        policy = DoublingAsPublished(start=4)
        run = simulate(Scheduler(ASHA(max_epochs=16, min_epochs=1, eta=2), policy), setting, trials=4, seed=0)
        (stall,) = run.stalled
        assert (stall.trial, stall.wanted, stall.devices) == (0, 32, 16)
        error = SchedulerStalled.of(stall.trial, wanted=stall.wanted, devices=stall.devices)
        assert "32 devices, the engine has 16" in str(error)
        assert isinstance(error, TrainwrightError)
        assert not isinstance(error, InputError)

    def test_a_stall_with_nodes_that_fail(self):
        """Nodes that fail and come back for ever do not keep a stalled study alive."""
        setting = Simulated(
            cluster=Cluster(4, 4),
            task=written(lambda trial, epoch: trial),
            node_mtbf_seconds=1000.0,
            repair_seconds=1e4,
        )
        policy = DoublingAsPublished(start=4)
        run = simulate(Scheduler(ASHA(max_epochs=16, min_epochs=1, eta=2), policy), setting, trials=4, seed=0)
        assert run.stalled

    def test_a_policy_in_circles_is_refused(self):
        """A policy that wakes itself for ever while nothing else happens is an error, not a hang."""

        @dataclass(frozen=True)
        class Restless(MarginalGain):
            def planner(self):
                return self

            def plan(self, device_allocator):
                device_allocator.plan_again_at(device_allocator.at)

            def free_slots(self, slots, slots_per_node):
                return BuddyAllocator(slots, slots_per_node)

        with pytest.raises(SchedulerStalled, match="changed nothing"):
            simulate(
                Scheduler(ASHA(max_epochs=3), Restless()), Simulated(cluster=Cluster(), task=SMOOTH), trials=1, seed=0
            )


def watched(scheduler, setting, trials, seed):
    """Simulate, and check at every plan that no more is granted than there is; return the run and the plans' times."""
    seen, plan = [], DeviceAllocator.plan

    def checked(device_allocator, at):
        seen.append(at)
        actions = plan(device_allocator, at)
        taken = [
            slot for running in device_allocator.running.values() for slot in {*running.block, *(running.target or ())}
        ]
        assert len(taken) == len(set(taken))
        assert len(taken) + device_allocator.free <= device_allocator.slots
        return actions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceAllocator, "plan", checked)
        return simulate(scheduler, setting, trials=trials, seed=seed), seen


def check_gantt(run, cluster):
    """Check that no slot is held twice at a time, nor a trial in two places; return the device seconds."""
    slots, trials = {}, {}
    for bar in run.gantt:
        assert 0 <= bar.start <= bar.end <= run.makespan_seconds
        trials.setdefault(bar.trial, []).append((bar.start, bar.end))
        for slot in bar.block:
            assert 0 <= slot < cluster.devices
            slots.setdefault(slot, []).append((bar.start, bar.end))
    for spans in [*slots.values(), *trials.values()]:
        ordered = sorted(spans)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(ordered))
    return sum(len(bar.block) * (bar.end - bar.start) for bar in run.gantt)


HARD = Simulated(
    cluster=Cluster(4, 4),
    task=Parametric(epoch_seconds=10.0),
    restart_seconds=1.0,
    stragglers=0.3,
    drops_per_second=0.001,
    node_mtbf_seconds=500.0,
    repair_seconds=50.0,
)
SCRIPT = """
from test_simulated import HARD, digests
print(*digests())
"""


def digests():
    rules = (ASHA(max_epochs=9, kind="promotion"), ASHA(max_epochs=9, min_epochs=1, eta=2))
    policies = (Fixed(2), Doubling(start=1), MarginalGain(start=1), DoublingAsPublished(start=1))
    return [simulate(Scheduler(rule, policy), HARD, trials=30, seed=3).digest for rule in rules for policy in policies]


class TestDigest:
    def test_equal_runs_are_equal(self):
        """The same study has the same digest each time; another seed has another."""
        first = digests()
        assert digests() == first == digests()
        assert len(set(first)) == len(first)
        one = Scheduler(ASHA(max_epochs=9))
        assert len({simulate(one, HARD, trials=30, seed=seed).digest for seed in range(3)}) == 3

    @pytest.mark.slow
    def test_hash_seeds_and_processes_do_not_matter(self):
        """Nor does the seed of Python's hashes, nor the process."""
        first = digests()
        for seed in ("0", "12345"):
            command = [sys.executable, "-c", SCRIPT]
            path = str(Path(__file__).parent)
            done = subprocess.run(
                command, env={"PYTHONHASHSEED": seed, "PYTHONPATH": path}, capture_output=True, text=True, check=True
            )
            assert done.stdout.split() == first

    def test_no_clock_is_read(self, monkeypatch):
        """Virtual time is all the time there is."""

        def clock():
            raise AssertionError("a wall clock was read")

        for name in ("time", "monotonic", "perf_counter", "process_time", "time_ns", "monotonic_ns", "perf_counter_ns"):
            monkeypatch.setattr(time, name, clock)
        run = simulate(Scheduler(ASHA(max_epochs=9), MarginalGain(start=1)), HARD, trials=30, seed=3)
        assert run.digest


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ({"restart_seconds": -1.0}, r"Simulated.restart_seconds: got -1.0; allowed: a number >= 0"),
            ({"drops_per_second": -0.5}, r"Simulated.drops_per_second: got -0.5"),
            ({"node_mtbf_seconds": 0.0}, r"Simulated.node_mtbf_seconds: got 0.0; allowed: a number > 0"),
            ({"stragglers": math.nan}, r"Simulated.stragglers: got nan"),
        ],
    )
    def test_settings_out_of_range(self, arguments, sentence):
        """Each is refused in one sentence."""
        with pytest.raises(EngineError, match=sentence):
            Simulated(cluster=Cluster(), **arguments)

    @pytest.mark.parametrize("alpha", [0.0, -1.0, 1.3])
    def test_alpha(self, alpha):
        """A scaling exponent lies in (0, 1.2]."""
        with pytest.raises(EngineError, match=r"Scaling.alpha: got .*above 0 and at most 1.2"):
            Scaling(alpha=alpha)

    def test_rules_and_policies_that_cannot_run(self):
        """A rule without a length, a start beyond the cluster and a study without trials are refused."""
        setting = Simulated(cluster=Cluster(1, 2), task=SMOOTH)
        with pytest.raises(InputError, match="the rule sets no length"):
            simulate(Scheduler(), setting, trials=1, seed=0)
        with pytest.raises(InputError, match="got 4, the engine has 2 slots"):
            simulate(Scheduler(ASHA(max_epochs=3), Doubling(start=4)), setting, trials=1, seed=0)
        with pytest.raises(InputError, match="trials: got 0"):
            simulate(Scheduler(ASHA(max_epochs=3)), setting, trials=0, seed=0)
        with pytest.raises(InputError, match=r"Cluster.nodes: got 0"):
            Cluster(0, 2)


def test_scaling_curve():
    """A measured curve is met at its points and interpolated between them on logarithms."""
    scaling = Scaling(curve={2: 1.8, 4: 3.0})
    assert [scaling.speedup(factor) for factor in (1, 2, 4)] == pytest.approx([1.0, 1.8, 3.0])
    assert scaling.speedup(2**1.5) == pytest.approx(math.sqrt(1.8 * 3.0))
    assert scaling.speedup(8) == pytest.approx(3.0 * 3.0 / 1.8)


def test_modules_read_no_clock():
    """The loop does not even import one."""
    assert not hasattr(module, "time")
