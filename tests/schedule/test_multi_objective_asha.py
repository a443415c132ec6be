"""ASHA of several objectives against brute force: fronts by comparing all pairs, places by their definitions."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import VIEW

from trainwright.errors import ScheduleError
from trainwright.schedule import Continue, MultiObjectiveASHA, Pause, Promote, Promoted, Reported, Stop, TrialView


def dominates(a, b):
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


def ranked(records):
    """Return trials by violation, front and place; records: trial -> (losses, violation)."""
    feasible = {trial: losses for trial, (losses, violation) in records.items() if violation == 0}
    values = [
        sorted({losses[k] for losses, _ in records.values()}) for k in range(len(next(iter(records.values()))[0]))
    ]
    scaled = {
        trial: [v.index(x) / max(1, len(v) - 1) for x, v in zip(losses, values, strict=True)]
        for trial, losses in feasible.items()
    }
    found = []
    while feasible:
        front = sorted(t for t, a in feasible.items() if not any(dominates(b, a) for b in feasible.values()))
        found += by_net(front, scaled)
        for trial in front:
            del feasible[trial]
    worse = sorted((violation, trial) for trial, (_, violation) in records.items() if violation > 0)
    return found + [trial for _, trial in worse]


def by_net(front, scaled):
    chosen = [min(front, key=lambda t: (scaled[t][0], t))]
    while len(chosen) < len(front):
        rest = [t for t in front if t not in chosen]
        chosen.append(max(rest, key=lambda t: (min(gap(scaled[t], scaled[c]) for c in chosen), -t)))
    return chosen


def gap(a, b):
    return round(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)), 9)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["stopping", "promotion"]),
    values=st.integers(2, 20),
    eta=st.sampled_from([2, 3]),
)
def test_equals_ranking_all_anew(seed, kind, values, eta):
    """A trial goes on iff its place is in the best 1/eta of its rung, infeasible ones last."""
    generator = np.random.default_rng(seed)
    rule = MultiObjectiveASHA(max_epochs=9, min_epochs=1, eta=eta, kind=kind)
    index, records, gone = rule.empty(), defaultdict(dict), set()
    for trial in generator.permutation(40).tolist():
        losses = tuple(generator.integers(0, values, size=2).astype(float).tolist())
        violation = float(generator.integers(0, 3)) if generator.random() < 0.3 else 0.0
        index = rule.fold(index, Reported(trial=trial, epoch=1, losses=losses, violation=violation))
        records[trial] = (losses, violation)
        best = ranked(records)[: max(kind == "stopping", len(records) // eta)]
        now = TrialView(number=trial, epoch=1, losses=losses)
        verdict = rule.on_report(index, VIEW, now)
        if trial in best:
            assert isinstance(verdict, Continue)
            gone.add(trial)
        else:
            assert isinstance(verdict, Stop if kind == "stopping" else Pause)
        waiting = [other for other in best if other not in gone]
        if kind == "promotion" and waiting:
            assert rule.on_free(index, VIEW) == Promote(waiting[0], 1 + (eta - 1))
            index = rule.fold(index, Promoted(trial=waiting[0], until_epoch=eta))
            gone.add(waiting[0])


def test_infeasible_trials_come_last():
    """However good: a trial that breaks a constraint goes on only after all that keep them, the least excess first."""
    rule = MultiObjectiveASHA(max_epochs=9, min_epochs=1, eta=2)
    index = rule.empty()
    kinds = []
    for trial, (loss, violation) in enumerate([(0.0, 2.0), (0.0, 1.0), (9.0, 0.0), (0.0, 0.5), (8.0, 0.0)]):
        event = Reported(trial=trial, epoch=1, losses=(loss, loss), violation=violation)
        index = rule.fold(index, event)
        now = TrialView(number=trial, epoch=1, losses=event.losses)
        kinds.append(type(rule.on_report(index, VIEW, now)))
    assert kinds == [Continue, Continue, Continue, Continue, Continue]
    assert index.tables[1].best == [4, 2]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: MultiObjectiveASHA(max_epochs=9).check(1),
            (
                "MultiObjectiveASHA compares trials by several objectives, the study has 1; give the study two or "
                "more, or use ASHA"
            ),
        ),
        (
            lambda: MultiObjectiveASHA(max_epochs=9, kind="both"),
            "MultiObjectiveASHA.kind: got 'both'; allowed: 'stopping', 'promotion'",
        ),
    ],
)
def test_bad_settings(make, sentence):
    with pytest.raises(ScheduleError) as caught:
        make()
    assert str(caught.value) == sentence
