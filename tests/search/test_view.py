"""The view: which rows a trial gives, what is pending and tried, and that its cost does not grow."""

import numpy as np
import pytest

import trainwright as tw
from trainwright.search import ForestSearcher, RandomSearcher, SearchView
from trainwright.search.bayes.loss_scale import RungScale
from trainwright.space import Choice, Float, Space, equals

SPACE = Space(x=Float(0.0, 1.0), o=Choice("a", "b"), m=Float(0.0, 1.0, when=equals("o", "b")))


def started(view, count=1):
    """Propose `count` trials numbered from 0."""
    for number, configuration in enumerate(RandomSearcher().ask(view, range(count))):
        view.propose(number, configuration)
    return view


def rows_of(view):
    return [
        (int(n), round(float(z), 6), *map(float, losses))
        for n, z, losses in zip(view.numbers, view.progress, view.losses, strict=True)
    ]


def z(epoch, horizon=27):
    return round(float(np.log(epoch) / np.log(horizon)), 6)


def test_a_trial_without_epochs_gives_one_final_row():
    view = started(SearchView(SPACE, 0), 2)
    view.result(1, [0.5], epoch=None, complete=True)
    assert rows_of(view) == [(1, 1.0, 0.5)]
    assert view.count_results == 1
    assert len(view.pending) == 1
    assert len(view.tried) == 2


def test_reports_become_rows_at_rungs_as_they_arrive():
    """With a known horizon of 27 the first report at or past 1, 3 and 9 is a row; the end is the last one."""
    view = started(SearchView(SPACE, 0, epochs=27))
    for epoch in range(1, 28):
        view.report(0, epoch, [30.0 - epoch])
        assert view.count == (epoch >= 1) + (epoch >= 3) + (epoch >= 9)
    view.result(0, [3.0], epoch=27, complete=True)
    assert rows_of(view) == [(0, z(1), 29.0), (0, z(3), 27.0), (0, z(9), 21.0), (0, 1.0, 3.0)]


@pytest.mark.parametrize("rungs", [(), (1, 3, 9, 27), (2, 5), (1, 2, 4, 8, 16, 32), (40,)])
def test_whoever_reached_a_rung_has_one_row_there(rungs):
    """Stopped there, stopped later, paused and promoted, or complete: no rung holds losers alone, nor winners alone."""
    view, generator = started(SearchView(SPACE, 0, epochs=52, rungs=rungs), 60), np.random.default_rng(0)
    last = {}
    for number in range(60):
        end = int(generator.choice([1, 2, 3, 5, 9, 17, 18, 27, 40, 52]))
        pause = int(generator.integers(1, end + 1))
        for epoch in range(1, end + 1):
            view.report(number, epoch, [100.0 - epoch])
            if epoch == pause < end:
                view.result(number, [100.0 - epoch], epoch=epoch, complete=False)
        view.result(number, [100.0 - end], epoch=end, complete=end == 52)
        last[number] = pause, end
    assert view.ladder == (rungs or (2, 6, 18))
    for rung, epoch in enumerate(view.ladder):
        here = view.rungs == rung
        reached = [number for number, (_, end) in last.items() if end >= epoch or rung == 0]
        assert sorted(view.numbers[here].tolist()) == reached
        told = view.losses[here & np.isin(view.numbers, [n for n, (p, e) in last.items() if p >= epoch])]
        assert np.all(told == 100.0 - epoch)
    final = view.rungs == view.top
    assert sorted(view.numbers[final].tolist()) == [number for number, (_, end) in last.items() if end == 52]
    assert np.array_equal(final, view.complete)


def test_a_trial_stopped_below_the_first_rung_is_told_as_if_there():
    view = started(SearchView(SPACE, 0, epochs=27, rungs=(9,)))
    view.report(0, 4, [4.0])
    view.result(0, [4.0], epoch=4, complete=False)
    assert rows_of(view) == [(0, z(9), 4.0)]
    assert view.rungs.tolist() == [0]


def test_rare_reports_are_told_at_their_own_epochs():
    view = started(SearchView(SPACE, 0, epochs=27))
    for epoch in (5, 10, 15, 20, 25):
        view.report(0, epoch, [float(epoch)])
    assert rows_of(view) == [(0, z(5), 5.0), (0, z(10), 10.0)]


def test_a_stopped_trial_is_never_told_as_finished():
    view = started(SearchView(SPACE, 0, epochs=27), 2)
    for epoch in range(1, 8):
        view.report(0, epoch, [float(epoch)])
    view.result(0, [7.0], epoch=7, complete=False)
    view.result(1, [2.0], epoch=2, complete=False)  # without any report: one row at its own epoch
    assert rows_of(view) == [(0, z(1), 1.0), (0, z(3), 3.0), (1, z(2), 2.0)]
    assert not view.complete.any()


def test_an_unknown_horizon_is_learned():
    """Without `epochs`, rungs are told at the end of a trial, below the greatest epoch that any has reached."""
    view = started(SearchView(SPACE, 0), 3)
    for number, last in ((0, 9), (1, 27), (2, 3)):
        for epoch in range(1, last + 1):
            view.report(number, epoch, [float(epoch)])
        assert number not in view.numbers
        view.result(number, [float(last)], epoch=last, complete=number == 1)
    assert [row for row in rows_of(view) if row[0] == 1] == [
        (1, z(1), 1.0),
        (1, z(3), 3.0),
        (1, z(9), 9.0),
        (1, 1.0, 27.0),
    ]
    assert np.all(view.progress[view.numbers != 1] < 1.0)
    assert [row for row in rows_of(view) if row[0] == 2] == [(2, z(1), 1.0), (2, z(3), 3.0)]


def test_the_horizon_is_the_least_that_what_is_seen_allows():
    """Of a stopped trial one epoch more than it had; of a complete one, its own."""
    view = started(SearchView(SPACE, 0), 2)
    view.result(0, [0.5], epoch=7, complete=False)
    assert view.horizon == 8
    view.result(1, [0.4], epoch=9, complete=True)
    assert view.horizon == 9


def test_a_paused_trial_goes_on_without_repeating_rows():
    view = started(SearchView(SPACE, 0, epochs=27))
    for epoch in range(1, 4):
        view.report(0, epoch, [float(epoch)])
    view.result(0, [3.0], epoch=3, complete=False)
    for epoch in range(4, 28):
        view.report(0, epoch, [float(epoch)])
    view.result(0, [27.0], epoch=27, complete=True)
    assert [row[1] for row in rows_of(view)] == [z(1), z(3), z(9), 1.0]
    assert view.count_results == 1


@pytest.mark.parametrize("losses", [None, [np.nan], [np.inf], [-np.inf]])
def test_what_is_not_finite_is_a_failure(losses):
    view = started(SearchView(SPACE, 0))
    view.result(0, losses, epoch=None, complete=True)
    assert view.failed.tolist() == [True]
    assert view.losses.tolist() == [[np.inf]]
    assert view.failed.sum() == 1
    assert view.count_results == 0


def test_one_bad_objective_fails_the_row():
    view = started(SearchView(SPACE, 0, objectives=2))
    view.result(0, [1.0, np.nan], epoch=None, complete=True)
    assert view.failed.all()
    assert np.all(view.losses == np.inf)


def test_a_late_result_replaces_the_failure():
    """A trial that was thought to have failed keeps one row, now with its result; kept forests notice."""
    view = started(SearchView(SPACE, 0), 2)
    view.result(0, None, epoch=None, complete=False)
    view.result(1, [0.1], epoch=None, complete=True)
    view.result(0, [0.7], epoch=None, complete=True)
    assert rows_of(view) == [(0, 1.0, 0.7), (1, 1.0, 0.1)]
    assert view.count_results == 2
    assert view.revision == 1


def test_withdrawn_trials_leave_no_row_but_stay_tried():
    view = started(SearchView(SPACE, 0))
    view.report(0, 1, [1.0])
    view.withdraw(0)
    assert view.count == 0
    assert view.pending.shape == (0, 3)
    assert len(view.tried) == 1


def test_rows_keep_inactive_parameters_as_nan():
    view = SearchView(SPACE, 0)
    view.propose(0, SPACE.configuration_of({"x": 0.25, "o": "a"}))
    view.result(0, [1.0], epoch=None, complete=True)
    assert view.rows[0, :2].tolist() == [0.25, 0.0]
    assert np.isnan(view.rows[0, 2])


def test_rows_may_outgrow_the_first_room():
    view = started(SearchView(SPACE, 0), 1000)
    for number in range(1000):
        view.result(number, [float(number)], epoch=None, complete=True)
    assert np.array_equal(view.losses[:, 0], np.arange(1000.0))
    assert np.array_equal(view.numbers, np.arange(1000))


def test_a_forest_kept_through_any_chunks_equals_one_grown_at_once():
    """Trees depend on the order of rows, not on when they were asked; a changed old row makes them grow anew."""

    def forest_after(chunks, late):
        view, searcher = started(SearchView(SPACE, 0), 120), ForestSearcher(initial=0, trees=4)
        done = 0
        for chunk in chunks:
            for number in range(done, done + chunk):
                losses = None if number == 7 else [(number * 37 % 101) / 7.0]
                view.result(number, losses, epoch=None, complete=True)
            done += chunk
            searcher.ask(view, [1000])
        if late:
            view.result(7, [0.01], epoch=None, complete=True)
            searcher.ask(view, [1000])
        return view.memo[searcher].forest

    for late in (False, True):
        whole, parts = forest_after([120], late).trees, forest_after([1, 2, 30, 1, 50, 36], late).trees
        assert np.array_equal(whole.leaf_of[:, :120], parts.leaf_of[:, :120])
        assert all(
            np.array_equal(whole._bits[t, : whole._sizes[t]], parts._bits[t, : parts._sizes[t]]) for t in range(4)
        )


def test_bounds_beyond_the_objectives_are_those_of_constraints():
    """Losses of constraints follow the objectives', and are no objectives themselves."""
    view = started(SearchView(SPACE, 0, 1, bounds=[np.inf, 3.0]), 2)
    view.result(0, [0.5, 2.0], epoch=None, complete=True)
    view.result(1, None, epoch=None, complete=False)
    assert view.losses.tolist() == [[0.5], [np.inf]]
    assert view.outcomes.tolist() == [[0.5, 2.0], [np.inf, np.inf]]
    assert view.bounds.tolist() == [np.inf, 3.0]
    assert SearchView(SPACE, 0, 2).bounds.tolist() == [np.inf, np.inf]


# Rungs on one scale.


def leveled(trials, epochs=27, rungs=(1, 3, 9)):
    """Return a view of trials, each a dict of losses by epoch, and its rows' values on one scale."""
    view = started(SearchView(SPACE, 0, epochs=epochs, rungs=rungs), len(trials))
    for number, losses in enumerate(trials):
        for epoch, loss in losses.items():
            view.report(number, epoch, [loss])
        end = max(losses)
        view.result(number, [losses[end]], epoch=end, complete=end == epochs)
    values = RungScale.of(view, view.count)(view.outcomes, view.rungs)[:, 0]
    return view, {(int(n), int(r)): float(v) for n, r, v in zip(view.numbers, view.rungs, values, strict=True)}


def test_a_rung_keeps_its_order_and_takes_its_values_from_below():
    trials = [{1: 10.0, 3: 0.6}, {1: 20.0, 3: 0.5}, {1: 30.0}, {1: 40.0}, {1: 25.0, 3: 0.9, 9: 0.4, 27: 0.1}]
    _, values = leveled(trials)
    assert [values[number, 0] for number in range(5)] == [10.0, 20.0, 30.0, 40.0, 25.0]
    assert values[1, 1] == 10.0  # the best at epoch 3
    assert values[0, 1] == 20.0
    assert values[4, 1] == values[4, 2] == values[4, 3] == 25.0  # the worst of those that went on, above who stopped


def test_what_has_no_row_below_lies_between_those_that_have():
    trials = [{1: 10.0, 9: 1.0}, {1: 20.0, 9: 2.0}, {1: 30.0, 9: 3.0}, {9: 1.5}]
    _, values = leveled(trials, rungs=(1, 9))
    assert values[3, 1] == 15.0


def test_a_scale_is_monotone_within_each_rung():
    generator = np.random.default_rng(0)
    trials = []
    for _ in range(80):
        quality, end = generator.random(), int(generator.choice([1, 3, 9, 27]))
        losses = {epoch: quality + 1 / epoch + 0.3 * generator.random() for epoch in (1, 3, 9, 27) if epoch <= end}
        trials.append(losses)
    view, _ = leveled(trials)
    values = RungScale.of(view, view.count)(view.outcomes, view.rungs)[:, 0]
    for rung in range(view.top + 1):
        here = view.rungs == rung
        order = np.argsort(view.losses[here, 0])
        assert np.all(np.diff(values[here][order]) >= 0.0)


def test_a_bound_is_kept_as_it_is():
    view = started(SearchView(SPACE, 0, epochs=9, rungs=(1,), bounds=[0.5]), 4)
    for number in range(4):
        view.report(number, 1, [2.0 + number])
        view.result(number, [0.1 * number], epoch=9, complete=True)
    assert np.array_equal(RungScale.of(view, view.count)(view.outcomes, view.rungs), view.outcomes)


def test_costs_are_seconds_per_epoch_of_what_was_measured():
    """By trial; a cost of zero, as of a trial told without seconds, is no cost."""
    view = SearchView(Space(x=Float(0.0, 1.0)), 0)
    assert view.costs.shape == (0,)
    for number, seconds in enumerate((3.0, 0.0, 5.0)):
        view.propose(number, view.space.configuration(np.array([number / 3])))
        view.spend(number, seconds)
        view.result(number, [1.0], epoch=None, complete=True)
    assert np.array_equal(view.costs, [3.0, np.nan, 5.0], equal_nan=True)


def test_a_study_tells_costs_live_and_opened_alike(tmp_path):
    costs = []
    with tw.Study(Space(x=Float(0.0, 1.0)), "min loss", directory=tmp_path) as study:
        for seconds in (2.0, 0.0, 7.5):
            study.tell(study.ask(), loss=seconds, wall_seconds=seconds)
        with pytest.raises(tw.TrainwrightError, match="tell: wall_seconds"):
            study.tell({"x": 0.5}, loss=1.0, wall_seconds=-1.0)
        costs.append(study._searcher_view().costs)
    with tw.Study.open(tmp_path) as study:
        costs.append(study._searcher_view().costs)
    assert np.array_equal(costs, [[2.0, np.nan, 7.5]] * 2, equal_nan=True)
