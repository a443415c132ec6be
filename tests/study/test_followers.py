"""What a promotion rule is told of a trial: its best loss over all reports, at a cost that does not grow with them."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

import trainwright as tw
from trainwright.ledger import State, facts
from trainwright.schedule import RuleView
from trainwright.study.projections import RuleProjection

COUNTER = itertools.count()
VIEW = RuleView(remaining=1, seed=0, at_seconds=0.0)


class Seen(tw.Median):
    """A rule that keeps what it was asked about."""

    def on_report(self, index, view, trial):
        self.asked.append((trial.epoch, trial.best_loss))
        return super().on_report(index, view, trial)

    asked = []  # noqa: RUF012 -- emptied by each test


class Reports(dict):
    """Counts how often it is gone through."""

    passes = 0

    def values(self):
        self.passes += 1
        return super().values()

    def items(self):
        self.passes += 1
        return super().items()

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


def fresh():
    state = State()
    fold(state, facts.created(space={}, objectives=["min loss"], seed=0, versions={}))
    return state


def fold(state, record):
    assert state.apply(record._replace(writer="w", seq=next(COUNTER)))


losses = st.sampled_from([0.1, 0.2, 0.3, 0.4, float("nan")])


@given(st.lists(st.lists(losses, min_size=1, max_size=6), min_size=1, max_size=4))
def test_the_best_is_that_of_the_reports(runs):
    """Each run begins anew, as without checkpoints, and reports epochs again: the newest report of each counts."""
    state, known = fresh(), {}
    projection = RuleProjection(Seen(), state.outcomes, 0)
    Seen.asked.clear()
    for lease, run in enumerate(runs, start=1):
        fold(state, facts.started(0, lease, slot="0", devices=("cpu:0",), resumed_epoch=0))
        for epoch, loss in enumerate(run, start=1):
            known[epoch] = float("inf") if loss != loss else loss
            fold(state, report(lease, epoch, loss))
            projection.verdict(state.trials[0], VIEW, epoch)
            assert Seen.asked[-1] == (max(known), min(known.values()))


def test_reports_are_gone_through_once_for_each_run():
    state = fresh()
    projection = RuleProjection(Seen(), state.outcomes, 0)
    fold(state, facts.started(0, 1, slot="0", devices=("cpu:0",), resumed_epoch=0))
    reports = state.trials[0].reports = Reports()
    for epoch in range(1, 50):
        fold(state, report(1, epoch, 1 / epoch))
        before = reports.passes
        projection.verdict(state.trials[0], VIEW, epoch)
        assert reports.passes - before == (epoch == 1)
    projection.forget(0)
    projection.verdict(state.trials[0], VIEW, epoch)
    assert reports.passes - before == 1
    assert Seen.asked[-2:] == [(49, 1 / 49)] * 2


def test_a_driver_forgets_whoever_ends(monkeypatch):
    """However a trial ends, also one that fails or is stopped, its losses are dropped."""
    forgotten, forget = [], RuleProjection.forget

    def noted(projection, trial):
        forgotten.append(trial)
        forget(projection, trial)

    monkeypatch.setattr(RuleProjection, "forget", noted)
    study = tw.Study(tw.Space(x=tw.Float(0.0, 1.0)), "min loss", seed=0, searcher=tw.RandomSearcher())
    scheduler = tw.ASHA(max_epochs=4, eta=2)
    study.run(fails_once, trials=6, scheduler=scheduler, engine=tw.Local(workers=0), progress=False)
    assert len({trial.status for trial in study.trials}) == 3
    assert sorted(forgotten) == [trial.number for trial in study.trials]


def fails_once(trial):
    for epoch in trial.epochs():
        if trial.number == 0 and epoch == 2:
            raise RuntimeError("out of luck")
        trial.report(loss=trial.params["x"] / epoch)


def report(lease, epoch, loss):
    return facts.reported(0, lease, epoch=epoch, step=None, metrics={"loss": loss}, wall_seconds=0.0)
