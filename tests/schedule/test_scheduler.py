"""Combinations: two rules at once, rules times policies, and the sentences for what does not go together."""

import pytest
from streams import judge

from trainwright.errors import ScheduleError
from trainwright.schedule import (
    ASHA,
    AnyOf,
    Continue,
    DeviceAllocator,
    Fixed,
    FixedEpochs,
    Median,
    Pause,
    Promote,
    Reason,
    RuleView,
    Scheduler,
    Stop,
)
from trainwright.schedule.policies.allocation_policy import Action, PendingTrial
from trainwright.schedule.rules.promotion_rule import CONTINUE, WAIT, New


class Says(FixedEpochs):
    """A rule that always says the same."""

    verdict = CONTINUE

    def on_report(self, index, view, trial):
        return self.verdict


def saying(verdict):
    return type("Saying", (Says,), {"verdict": verdict, "__slots__": ()})()


STOP, PAUSE, GO = (kind(Reason(rule=kind.__name__, epoch=1)) for kind in (Stop, Pause, Continue))


@pytest.mark.parametrize(
    ("first", "second", "strictest"),
    [
        (STOP, PAUSE, STOP),
        (PAUSE, STOP, STOP),
        (PAUSE, CONTINUE, PAUSE),
        (CONTINUE, PAUSE, PAUSE),
        (STOP, CONTINUE, STOP),
        (CONTINUE, CONTINUE, CONTINUE),
        (CONTINUE, GO, GO),
    ],
)
def test_any_of_takes_the_strictest_verdict(first, second, strictest):
    """Stop over pause over continue, with the reason of the rule that said so."""
    rule = AnyOf(saying(first), saying(second))
    _, verdict = judge(rule, rule.empty(), 0, 1, 0.5)
    assert verdict == strictest


def test_any_of_folds_both():
    """Each rule keeps its own memory, and the sooner of two next epochs counts."""
    rule = AnyOf(ASHA(max_epochs=27, min_epochs=9), Median(min_trials=1, interval=4))
    index, _ = judge(rule, rule.empty(), 0, 1, 0.1)
    index, verdict = judge(rule, index, 1, 1, 0.2)
    assert verdict == Stop(Reason(rule="Median", epoch=1, value=0.2, threshold=0.1))
    _, verdict = judge(rule, index, 0, 9, 0.1)
    assert verdict.reason.rule == "ASHA"
    assert rule.max_epochs == 27
    assert AnyOf(FixedEpochs(9), ASHA(max_epochs=27)).max_epochs == 9
    assert AnyOf(FixedEpochs(), Median()).max_epochs is None


def test_any_of_hands_out_free_devices_as_its_first_rule_does():
    """A trial that the first has paused is promoted; what it remembers is asked, not what the second does."""
    rule = AnyOf(ASHA(max_epochs=9, eta=3, kind="promotion"), Median())
    index = rule.empty()
    for trial, loss in enumerate((0.2, 0.3, 0.4)):
        index, verdict = judge(rule, index, trial, 1, loss)
        assert isinstance(verdict, Pause)
    assert rule.on_free(index, RuleView(remaining=5)) == Promote(0, 3)
    # Nobody would promote what it pauses, if it were second, however deep.
    assert rule.promotes
    with pytest.raises(ScheduleError, match="got AnyOf second, which pauses trials"):
        AnyOf(FixedEpochs(9), rule).check(1)


def test_free_devices_go_to_new_trials_while_the_budget_lasts():
    for rule in (ASHA(max_epochs=9), Median(), FixedEpochs(), AnyOf(Median(), ASHA(max_epochs=3))):
        assert rule.on_free(rule.empty(), RuleView(remaining=1)) == New()
        assert rule.on_free(rule.empty(), RuleView(remaining=0)) == WAIT


def test_rules_of_one_objective_refuse_several():
    """A rule that compares one objective would drop the trials that are best at another."""
    several = r"ASHA compares trials by one objective, the study has 2; give the study one objective, or use"
    for rule in (ASHA(max_epochs=9), AnyOf(FixedEpochs(), ASHA(max_epochs=9))):
        rule.check(1)
        with pytest.raises(ScheduleError, match=several):
            rule.check(2)
    FixedEpochs(9).check(3)


class Queue:
    def __init__(self, waiting):
        self.waiting = list(waiting)

    def next_trial(self, *, new=True):
        return PendingTrial(self.waiting.pop(0)) if self.waiting else None

    def waits(self):
        return bool(self.waiting)


def planned(policy, waiting, slots=5, per_node=5):
    allocator = DeviceAllocator(
        policy, Queue(waiting), policy.free_slots(slots, per_node), slots=slots, rungs=(), survival=lambda _: ()
    )
    return allocator.plan(0.0)


def test_fixed_gives_the_lowest_slots_in_order():
    assert planned(Fixed(2), [7, 5, 9]) == [Action("start", 7, (0, 1)), Action("start", 5, (2, 3))]
    assert planned(Fixed(3), [7, 5]) == [Action("start", 7, (0, 1, 2))]
    assert planned(Fixed(3), [7, 5], slots=8, per_node=4) == [
        Action("start", 7, (0, 1, 2)),
        Action("start", 5, (4, 5, 6)),
    ]
    assert planned(Fixed(), []) == []


@pytest.mark.parametrize("devices", [0, -1, 1.5, "2", True, None])
def test_fixed_refuses_what_is_no_size(devices):
    with pytest.raises(ScheduleError, match=r"Fixed.devices: got .*; allowed: a whole number >= 1"):
        Fixed(devices)


def test_fixed_refuses_a_small_engine():
    Fixed(4).check(4, 4, FixedEpochs())
    with pytest.raises(ScheduleError, match=r"Fixed.devices: got 4, the engine has 3 slots; allowed: 1 to 3, or"):
        Fixed(4).check(3, 3, FixedEpochs())


def test_scheduler_of():
    """A rule alone runs on one slot a trial, a policy alone stops nobody."""
    rule, policy = ASHA(max_epochs=9), Fixed(2)
    assert Scheduler.of(None) == Scheduler(FixedEpochs(), Fixed(1))
    assert Scheduler.of(rule) == Scheduler(rule, Fixed(1))
    assert Scheduler.of(policy) == Scheduler(FixedEpochs(), policy)
    assert Scheduler.of(Scheduler(rule, policy)) == Scheduler(rule, policy)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Scheduler.of(27), "scheduler: got 27; allowed: a rule such as"),
        (lambda: Scheduler.of(ASHA), "scheduler: got <class .*ASHA'>; allowed: a rule such as"),
        (lambda: Scheduler(Fixed(2)), r"Scheduler.rule: got Fixed\(devices=2\); allowed: a rule such as"),
        (lambda: Scheduler(FixedEpochs(3), FixedEpochs(3)), r"Scheduler.policy: got FixedEpochs\(max_epochs=3\)"),
        (lambda: AnyOf(Median(), 5), "AnyOf: got 5; allowed: two rules"),
        (lambda: FixedEpochs(0), "FixedEpochs.max_epochs: got 0; allowed: a whole number of epochs >= 1"),
    ],
)
def test_what_does_not_go_together(make, sentence):
    with pytest.raises(ScheduleError, match=sentence):
        make()
