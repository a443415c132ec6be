"""What every allocation policy promises, as tests that any policy inherits.

    class TestMine(PolicyConformance):
        def make_policy(self):
            return Mine(start=2)

Needs no test library of its own: any runner that collects classes and methods named test will do.
"""
# ruff: noqa: S101, S301 -- a test kit is made of asserts, and pickles what it made itself

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from trainwright.errors import ScheduleError
from trainwright.randomness import rng
from trainwright.schedule.allocator.device_allocator import DeviceAllocator
from trainwright.schedule.policies.allocation_policy import AllocationPolicy, PendingTrial
from trainwright.schedule.rules.halving import ASHA

__all__ = ["PolicyConformance"]

_RULE = ASHA(max_epochs=8, eta=2)
_LADDER = (*_RULE.rungs, 8)


@dataclass
class _Queue:
    """Trials that wait to be started."""

    waiting: list[int]

    def next_trial(self, *, new: bool = True) -> PendingTrial | None:  # noqa: ARG002 -- without a budget of time all are asked for
        return PendingTrial(self.waiting.pop(0)) if self.waiting else None

    def waits(self) -> bool:
        return bool(self.waiting)


@dataclass
class _Played:
    """A study without training: trials report in random order, and each survives a rung with chance 1/2."""

    allocator: DeviceAllocator
    queue: _Queue
    started: list[int] = field(default_factory=list)  # for the first time, in order
    ended: set[int] = field(default_factory=set)
    epochs: dict[int, int] = field(default_factory=dict)
    held: dict[int, tuple[int, ...]] = field(default_factory=dict)
    events: int = 0


def _play(policy: AllocationPolicy, slots: int, per_node: int, seed: int) -> Iterator[_Played]:
    generator = rng(seed, "conformance", slots)
    # More work than fits at once, so that slots are given back and granted again.
    queue = _Queue(list(range(5 * max(1, slots // policy.start))))
    free_slots = policy.free_slots(slots, per_node)
    allocator = DeviceAllocator(
        policy, queue, free_slots, slots=slots, rungs=_LADDER, survival=lambda running: (0.5,) * (3 - running.rungs)
    )
    played = _Played(allocator, queue)
    clock = 0.0
    _act(played, clock)
    yield played
    # Until nothing runs, rests or waits: a policy that forgets a trial never ends here.
    while allocator.running or allocator.preempted or queue.waiting:
        clock += float(generator.random()) * 10
        running = sorted(allocator.running)
        if not running:
            assert allocator.wake_at is not None, "nothing runs, work waits, and nothing is granted or waited for"
            # On to the moment that the policy waits for, and just beyond it.
            clock = max(clock, allocator.wake_at) + 1e-9
        else:
            number = running[generator.integers(len(running))]
            _report(played, number, clock, survives=generator.random() < 0.5, better=float(generator.random()))
        _act(played, clock)
        yield played


def _report(played: _Played, number: int, clock: float, *, survives: bool, better: float) -> None:
    allocator = played.allocator
    # The allocator hears of each epoch, the end of a trial only once.
    epoch = played.epochs[number] = played.epochs.get(number, 0) + 1
    played.events += 1
    allocator.note_report(number, epoch, better, clock)
    if epoch >= _LADDER[-1] or (epoch in _LADDER and not survives):
        allocator.note_ended(number)
        played.ended.add(number)
        del played.held[number]


def _act(played: _Played, clock: float) -> None:
    """Do what the plan says; a trial that is at a checkpoint moves or rests at once, others at their next report."""
    allocator = played.allocator
    # Only at a report is a checkpoint due, so only the trial that reported may act at once.
    at_checkpoint = None if allocator.changed is None else allocator.changed.trial
    if allocator.changed is not None and not allocator.changed.is_settled:
        _leave(played, allocator.changed.trial, clock)
    actions = allocator.plan(clock)
    for action in actions:
        if action.kind == "start":
            trial = action.trial
            assert trial not in played.held, f"trial {trial} was started while it runs"
            if trial not in played.epochs and trial not in played.started:
                played.started.append(trial)
            played.held[trial] = action.block
        elif action.kind in {"resize", "preempt"} and action.trial == at_checkpoint:
            _leave(played, action.trial, clock)
    _check(played)
    if any(action.kind == "preempt" for action in actions):
        _act(played, clock)  # what was given back is free


def _leave(played: _Played, trial: int, clock: float) -> None:
    running = played.allocator.running[trial]
    if running.target is not None:
        played.allocator.note_resized(trial, clock)
        played.held[trial] = running.block
    else:
        played.allocator.note_preempted(trial)
        del played.held[trial]


def _check(played: _Played) -> None:
    allocator = played.allocator
    # A trial that moves holds its old and its new block for a moment.
    blocks = [{*running.block, *(running.target or ())} for running in allocator.running.values()]
    taken = [slot for block in blocks for slot in block]
    assert len(taken) == len(set(taken)), "two trials hold one slot"
    assert all(0 <= slot < allocator.slots for slot in taken), "a slot that the engine does not have"
    assert len(taken) + allocator.free <= allocator.slots, "more is granted than there is"
    assert {trial: running.block for trial, running in allocator.running.items()} == played.held


class PolicyConformance(ABC):
    """Inherit as Test<Policy> and give `make_policy` and the sizes of engines (slots, slots a node) that it can use."""

    engines: ClassVar[tuple[tuple[int, int], ...]] = ((1, 1), (2, 2), (3, 3), (8, 8), (12, 4), (10, 6))

    @abstractmethod
    def make_policy(self) -> AllocationPolicy:
        """Return the policy."""

    def test_every_trial_ends(self) -> None:
        """Whatever ends when, all work is started in its order and ends; then every slot is free again."""
        for seed, (slots, per_node) in enumerate(self.engines):
            policy = self.make_policy()
            policy.check(slots, per_node, _RULE)
            # A policy may leave slots unused, such as those beyond a power of two.
            free = policy.free_slots(slots, per_node).free
            for played in _play(policy, slots, per_node, seed):
                assert played.events < 10_000, "trials go on for ever"
            assert played.ended == set(range(len(played.ended)))
            assert played.started == sorted(played.started)
            assert played.allocator.free == free

    def test_a_plan_repeats(self) -> None:
        """The same events give the same plan."""
        slots, per_node = self.engines[-1]
        # Two plays of the same events, by policies made anew.
        runs = [[dict(played.held) for played in _play(self.make_policy(), slots, per_node, 7)] for _ in range(2)]
        assert runs[0] == runs[1]

    def test_refuses_an_engine_that_is_too_small(self) -> None:
        """An engine on which no trial could ever start is refused before anything runs."""
        try:
            self.make_policy().check(0, 1, _RULE)
        except ScheduleError:
            return
        raise AssertionError("an engine without slots was accepted")

    def test_is_a_value(self) -> None:
        """A policy is its settings: equal ones are equal, and it survives pickling."""
        policy = self.make_policy()
        assert isinstance(policy, AllocationPolicy)
        assert pickle.loads(pickle.dumps(policy)) == policy == self.make_policy()
