"""Rules that pause and promote, against brute force: at every event all records are sorted anew."""

import itertools
import math
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import VIEW, judge, played, views

from trainwright.errors import ScheduleError
from trainwright.schedule import (
    ASHA,
    PASHA,
    Continue,
    Hyperband,
    IEpoch,
    MultiObjectiveASHA,
    Pause,
    Promote,
    Promoted,
    Reported,
    RuleView,
    SuccessiveHalving,
    TrialView,
)
from trainwright.schedule.rules.pasha import _Noise
from trainwright.schedule.rules.promotion_rule import WAIT, Ended, Judged, New, Opened, Started
from trainwright.schedule.rules.rung_rule import rung_ladder


class Sorted:
    """Promotion-ASHA by sorting all records of a rung whenever anything is asked; `top` is where nobody goes on."""

    def __init__(self, rungs, last, eta):
        self.rungs, self.last, self.eta, self.top = rungs, last, Fraction(eta), math.inf
        self.records, self.reached, self.waits, self.ended = defaultdict(list), defaultdict(int), {}, set()

    def best(self, rung):
        ranked = sorted(self.records[rung])
        return [trial for _, trial in ranked[: math.floor(len(ranked) / self.eta)]]

    def take(self, event):
        """Return the rungs that a report reached, and whether it pauses."""
        if isinstance(event, Ended):
            self.ended.add(event.trial)
            self.waits.pop(event.trial, None)
        if isinstance(event, Promoted):
            self.waits.pop(event.trial, None)
        if not isinstance(event, Reported):
            return [], False
        new = [rung for rung in self.rungs if self.reached[event.trial] < rung <= event.epoch]
        for rung in new:
            self.records[rung].append((event.losses[0], event.trial))
        if not new:
            return [], False
        self.reached[event.trial] = new[-1]
        goes_on = event.trial in self.best(new[-1]) and new[-1] < self.top
        if goes_on or event.epoch >= self.last:
            return new, False
        self.waits[event.trial] = new[-1]
        return new, True

    def answer(self, remaining):
        for rung, above in reversed(list(zip(self.rungs, (*self.rungs[1:], self.last), strict=True))):
            found = [trial for trial in self.best(rung) if self.waits.get(trial) == rung and rung < self.top]
            if found:
                return Promote(found[0], above)
        return New() if remaining else WAIT


def follow(rule, brute, events, trials, check=lambda event, new: None):
    """Hold a rule's verdicts and answers against brute force at every event."""
    index = rule.empty()
    epochs = {}
    for event, view in views(events, trials):
        index = rule.fold(index, event)
        again = isinstance(event, Reported) and event.epoch <= epochs.get(event.trial, 0)
        new, pauses = ([], False) if again else brute.take(event)
        check(event, new)
        if isinstance(event, Reported) and not again:
            epochs[event.trial] = event.epoch
            now = TrialView(number=event.trial, epoch=event.epoch, losses=event.losses)
            assert isinstance(rule.on_report(index, view, now), Pause if pauses else Continue)
        assert rule.on_free(index, view) == brute.answer(view.remaining)


@settings(max_examples=40)
@given(data=st.data(), eta=st.sampled_from([2, 3, Fraction(3, 2), 5]), least=st.integers(1, 3))
def test_asha_promotes_as_by_sorting(data, eta, least):
    """From the highest rung down: the best of the floor(n/eta) best that waits; and no trial twice."""
    rule = ASHA(max_epochs=20, min_epochs=least, eta=eta, kind="promotion")
    study, trials = data.draw(played(rule))
    follow(rule, Sorted(rule.rungs, 20, eta), study.events, trials)
    assert len(study.promotions) == len(set(study.promotions))


class Raised(Sorted):
    """PASHA: the top is raised when the two top rungs disagree; epsilon is looked for among all pairs, each time."""

    def __init__(self, rungs, last, eta):
        super().__init__(rungs, last, eta)
        self.levels, self.place, self.curves = (*rungs, last), min(1, len(rungs)), {}
        self.top = self.levels[self.place]

    def take(self, event):
        if isinstance(event, Reported):
            self.curves.setdefault(event.trial, {})[event.epoch] = event.losses[0]
        taken = super().take(event)
        while self.top != self.last and set(taken[0]) & set(self.levels[self.place - 1 : self.place + 1]):
            lower, upper = ({t: x for x, t in self.records[r]} for r in self.levels[self.place - 1 :][:2])
            order = [trial for _, trial in sorted((loss, trial) for trial, loss in upper.items())]
            below = sorted(lower[trial] for trial in order)
            near = [lower[t] == x or abs(lower[t] - x) <= self.noise() for t, x in zip(order, below, strict=True)]
            if all(near):
                break
            self.place += 1
            self.top = self.levels[self.place]
        return taken

    def noise(self):
        rung = self.levels[self.place - 1]
        members = [trial for _, trial in self.records[rung]]
        pairs, gaps = 0, []
        for i, a in enumerate(members):
            for b in members[:i]:
                common = sorted(e for e in self.curves[a].keys() & self.curves[b].keys() if e <= rung)
                gap = [self.curves[a][e] - self.curves[b][e] for e in common]
                gap = [x for x in gap if math.isfinite(x)]
                signs = [x > 0 for x in gap if x]
                if sum(x != y for x, y in itertools.pairwise(signs)) >= 2:
                    pairs += 1
                    gaps += map(abs, gap)
        gaps.sort()
        if pairs < 10:
            return 0.0
        place = 0.9 * (len(gaps) - 1)
        low = gaps[int(place)]
        return low + (place - int(place)) * (gaps[min(int(place) + 1, len(gaps) - 1)] - low) + 1e-12


@settings(max_examples=30)
@given(data=st.data(), eta=st.sampled_from([2, 3]))
def test_pasha_opens_rungs_as_by_comparing_all(data, eta):
    """One more rung iff the trials at the top rank otherwise than below, by more than epsilon."""
    rule = PASHA(max_epochs=30, eta=eta)
    study, trials = data.draw(played(rule, most=40))
    follow(rule, Raised(rule.rungs, 30, eta), study.events, trials)


def test_the_noise_of_curves_is_told_by_ten_pairs_that_cross():
    """The 90 % quantile of their distances at the epochs up to the rung; none before."""
    noise, curves = _Noise(), []
    for size in range(5):
        assert noise.epsilon == 0
        curve = {epoch: size * (-1.0) ** epoch for epoch in range(1, 6)}
        noise.add(curve, curves, 4)
        curves.append(curve)
    gaps = [float(one - other) for one in range(5) for other in range(one) for _ in range(4)]
    assert noise.epsilon == pytest.approx(np.quantile(gaps, 0.9))


def test_pasha_trains_no_further_than_needed():
    """While two rungs agree nobody passes the second; a swap opens the third."""
    rule = PASHA(max_epochs=81)
    index = rule.empty()
    for trial in range(27):
        index, _ = judge(rule, index, trial, 1, float(trial))
    for trial in range(9):
        assert rule.on_free(index, VIEW) == Promote(trial, 3)
        index = rule.fold(index, Promoted(trial=trial, until_epoch=3))
        index, verdict = judge(rule, index, trial, 3, float(trial if trial != 8 else -1))
        assert isinstance(verdict, Pause)
    assert rule.on_free(index, VIEW) == Promote(8, 9)  # 8 came to be first: the ranking is not settled


@settings(max_examples=60)
@given(data=st.data(), maker=st.sampled_from([ASHA, Hyperband, MultiObjectiveASHA]), seed=st.integers(0, 2**32 - 1))
def test_drivers_that_read_in_another_order_promote_the_same(data, maker, seed):
    """Each knows other reports when a trial comes to a rung; as verdicts are told, the same trials wait for all."""
    rule = maker(max_epochs=9, eta=2, kind="promotion")
    study, _ = data.draw(played(rule, most=30, objectives=1 + isinstance(rule, MultiObjectiveASHA)))
    cut = data.draw(st.integers(1, len(study.events)))
    cut += cut < len(study.events) and isinstance(study.events[cut], Judged)
    there, here = rule.empty(), rule.empty()
    queues = defaultdict(list)
    for event in study.events[:cut]:
        there = rule.fold(there, event)
        if not isinstance(event, Opened):
            queues[event.trial].append(event)
    here = rule.fold(here, study.events[0])
    generator = np.random.default_rng(seed)
    while queues:
        trial = sorted(queues)[generator.integers(len(queues))]
        here = rule.fold(here, queues[trial].pop(0))
        if not queues[trial]:
            del queues[trial]
    assert promoted_at_last(rule, here) == promoted_at_last(rule, there)


def promoted_at_last(rule, index):
    promoted = []
    while isinstance(answer := rule.on_free(index, VIEW), Promote):
        promoted.append(answer)
        index = rule.fold(index, Promoted(trial=answer.trial, until_epoch=answer.until_epoch))
    return promoted


@settings(max_examples=40)
@given(
    data=st.data(), top=st.sampled_from([1, 3, 7, 0.25]), quorum=st.sampled_from([1.0, 0.5]), first=st.integers(1, 3)
)
def test_iepoch_promotes_the_best_of_all(data, top, quorum, first):
    """Not before the quorum has come or ended; then the best that waits, until top_k that did not fail are chosen."""
    rule = IEpoch(epochs=first, top_k=top, max_epochs=9, quorum=quorum)
    study, trials = data.draw(played(rule))
    index = rule.empty()
    started, came, gone, failed, chosen = set(), {}, set(), set(), set()
    for event, view in views(study.events, trials):
        index = rule.fold(index, event)
        if isinstance(event, Started):
            started.add(event.trial)
        if isinstance(event, Promoted):
            chosen.add(event.trial)
        if isinstance(event, Ended):
            gone.add(event.trial)
            failed |= {event.trial} if event.failed else set()
        if isinstance(event, Reported) and event.epoch >= first:
            came.setdefault(event.trial, event.losses[0])
        everyone = len(started) + view.remaining
        places = top if top >= 1 else max(1, math.floor(everyone * top))
        waiting = sorted((loss, trial) for trial, loss in came.items() if trial not in chosen | gone)
        is_open = chosen or len(came.keys() | gone) >= quorum * everyone
        if is_open and waiting and len(chosen - failed) < places:
            assert rule.on_free(index, view) == Promote(waiting[0][1], 9)
        else:
            assert rule.on_free(index, view) == (New() if view.remaining else WAIT)


@settings(max_examples=40)
@given(data=st.data(), n=st.integers(1, 12), eta=st.sampled_from([2, 3]))
def test_halving_promotes_the_best_of_each_bracket(data, n, eta):
    """Trained epoch by epoch: of the members of a rung the floor(n/eta) best went on, and none came before all had."""
    rule = SuccessiveHalving(n=n, max_epochs=9, eta=eta)
    study, trials = data.draw(played(rule).filter(lambda found: _epoch_by_epoch(found[0].events)))
    losses, until, order = defaultdict(dict), {}, []
    for event in study.events:
        if isinstance(event, Reported) and event.epoch in rule.rungs:
            losses[event.epoch].setdefault(event.trial, event.losses[0])
        if isinstance(event, Promoted):
            until[event.trial] = event.until_epoch
            order.append(event)
    for block in range(0, trials, n):
        members = set(range(block, min(block + n, trials)))
        for rung, above in zip(rule.rungs, (*rule.rungs[1:], 9), strict=True):
            came = sorted((losses[rung][trial], trial) for trial in members & losses[rung].keys())
            keep = max(1, len(members) * 1 // eta) if members else 0
            winners = [trial for _, trial in came[:keep]]
            promoted = [event.trial for event in order if event.until_epoch == above and event.trial in members]
            assert promoted == winners
            members = set(winners)


def _epoch_by_epoch(events):
    seen = defaultdict(int)
    for event in events:
        if isinstance(event, Reported):
            if event.epoch > seen[event.trial] + 1:
                return False
            seen[event.trial] = max(seen[event.trial], event.epoch)
    return True


def test_a_rung_waits_for_all_and_closes_on_a_failure():
    """Nobody goes on before the last member has come; one that fails for good is not waited for."""
    rule = SuccessiveHalving(n=3, max_epochs=3)
    index = rule.empty()
    for trial, loss in enumerate((0.3, 0.1)):
        index = rule.fold(index, Started(trial=trial))
        index, verdict = judge(rule, index, trial, 1, loss)
        assert isinstance(verdict, Pause)
    index = rule.fold(index, Started(trial=2))
    assert rule.on_free(index, RuleView(remaining=5)) == New()  # the next bracket begins meanwhile
    assert rule.on_free(index, VIEW) == WAIT
    index = rule.fold(index, Ended(trial=2, failed=True))
    assert rule.on_free(index, RuleView(remaining=5)) == Promote(1, 3)


def test_the_order_of_simultaneous_reports_changes_no_one_that_goes_on():
    """Whoever of a bracket reports first: the same trials are promoted."""
    rule = SuccessiveHalving(n=6, max_epochs=9, min_epochs=1, eta=2)
    losses = [0.5, 0.2, 0.2, 0.9, 0.1, 0.7]
    for shift in range(6):
        index = rule.empty()
        for trial in (*range(shift, 6), *range(shift)):
            index, _ = judge(rule, index, trial, 1, losses[trial])
        chosen = []
        while isinstance(answer := rule.on_free(index, VIEW), Promote):
            chosen.append(answer.trial)
            index = rule.fold(index, Promoted(trial=answer.trial, until_epoch=answer.until_epoch))
        assert chosen == [4, 1, 2]


@pytest.mark.parametrize(
    ("length", "eta", "weights"), [(81, 3, (81, 34, 15, 8, 5)), (16, 4, (16, 6, 3)), (1, 3, (1,)), (10, 3, (9, 5, 3))]
)
def test_weights_of_brackets(length, eta, weights):
    """ceil((B+1) / (B-b+1) * eta^(B-b)), in integers."""
    assert Hyperband(max_epochs=length, eta=eta).weights == weights


def test_brackets_are_drawn_by_weight_and_compared_apart():
    """Each trial's bracket follows from seed and number; each is an ASHA of its own."""
    rule = Hyperband(max_epochs=27)
    index = rule.fold(rule.empty(), Opened(seed=7))
    homes = [rule.next_epoch(index, TrialView(number=n, epoch=0, losses=(0.0,))) for n in range(4000)]
    shares = [homes.count(first) / 4000 for first in (1, 3, 9, 27)]
    assert shares == pytest.approx([weight / sum(rule.weights) for weight in rule.weights], abs=0.03)
    plain = {first: ASHA(max_epochs=27, min_epochs=first) for first in (1, 3, 9)}
    indices = {first: other.empty() for first, other in plain.items()}
    for trial in range(300):
        first, loss = homes[trial], float((trial * 7919) % 101)
        index, verdict = judge(rule, index, trial, first, loss)
        if first < 27:
            indices[first], expected = judge(plain[first], indices[first], trial, first, loss)
            assert type(verdict) is type(expected)
            assert verdict.reason.threshold == expected.reason.threshold


def test_another_seed_draws_other_brackets():
    rule = Hyperband(max_epochs=27)
    trials = [TrialView(number=n, epoch=0, losses=(0.0,)) for n in range(50)]
    drawn = [[rule.next_epoch(rule.fold(rule.empty(), Opened(seed=s)), t) for t in trials] for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_first_full_model_of_nine_workers():
    """eta=3, r=1, R=9, nine workers and times by epochs: 13 = 1+3+9 from scratch each time, 9 with resume."""
    rule = ASHA(max_epochs=9, kind="promotion")
    for resumes, expected in ((True, 9.0), (False, 13.0)):
        assert _first_full(rule, resumes=resumes) == expected


def _first_full(rule, *, resumes):
    index, started, running, now = rule.empty(), 0, [], 0.0
    levels = (*rung_ladder(1, 9, Fraction(3)), 9)
    while True:
        while len(running) < 9:
            answer = rule.on_free(index, RuleView(remaining=100))
            if isinstance(answer, Promote):
                index = rule.fold(index, Promoted(trial=answer.trial, until_epoch=answer.until_epoch))
                done = levels[levels.index(answer.until_epoch) - 1] if resumes else 0
                running.append((now + answer.until_epoch - done, answer.trial, answer.until_epoch))
            else:
                running.append((now + 1, started, 1))
                started += 1
        running.sort()
        now, trial, epoch = running.pop(0)
        if epoch == 9:
            return now
        index, verdict = judge(rule, index, trial, epoch, float(trial))
        if isinstance(verdict, Continue):  # promotable the moment it arrives
            done = epoch if resumes else 0
            above = levels[levels.index(epoch) + 1]
            running.append((now + above - done, trial, above))


BAD = [
    (lambda: ASHA(max_epochs=9, kind="both"), "ASHA.kind: got 'both'; allowed: 'stopping', 'promotion'"),
    (
        lambda: ASHA(max_epochs=9, kind="promotion", cutoff="quantile"),
        "ASHA.cutoff: got 'quantile' with kind='promotion'; allowed: 'rank', 'adaptive', or kind='stopping'",
    ),
    (
        lambda: SuccessiveHalving(n=0, max_epochs=9),
        "SuccessiveHalving.n: got 0; allowed: a whole number of trials >= 1",
    ),
    (
        lambda: SuccessiveHalving(n=3, max_epochs=9, min_epochs=10),
        "SuccessiveHalving.min_epochs: got 10, above max_epochs 9; allowed: 1 to max_epochs",
    ),
    (lambda: Hyperband(max_epochs=9, eta=1), "Hyperband.eta: got 1; allowed: a number > 1, usually 2, 3 or 4"),
    (
        lambda: IEpoch(top_k=0, max_epochs=9),
        "IEpoch.top_k: got 0; allowed: a whole number >= 1, or a fraction between 0 and 1",
    ),
    (
        lambda: IEpoch(top_k=1, epochs=9, max_epochs=3),
        "IEpoch.epochs: got 9, above max_epochs 3; allowed: 1 to max_epochs",
    ),
    (
        lambda: IEpoch(top_k=1, max_epochs=3, quorum=0),
        "IEpoch.quorum: got 0; allowed: a number above 0 and at most 1",
    ),
    (
        lambda: IEpoch(top_k=9, max_epochs=3).check(1, 4),
        (
            "IEpoch.top_k: got 9, the budget has 4 trials, so nothing would be selected; allowed: 1 to 4, or a "
            "fraction; or use FixedEpochs"
        ),
    ),
]


@pytest.mark.parametrize(("make", "sentence"), BAD)
def test_bad_settings(make, sentence):
    with pytest.raises(ScheduleError) as caught:
        make()
    assert str(caught.value) == sentence
