"""The searcher of a study that names none: who is asked when, and that nobody sees the seam."""

import math

import numpy as np
import pytest

import trainwright as tw
from trainwright.search import DefaultSearcher, ForestSearcher, GaussianProcessSearcher, QuasiRandomSearcher, SearchView
from trainwright.search.bayes.wide_searcher import WideSearcher
from trainwright.space import Choice, Float, Space
from trainwright.testing.searcher import SearcherConformance, play


@pytest.mark.slow
class TestDefault(SearcherConformance):
    def make_searcher(self):
        return DefaultSearcher()


def bowl(configuration, number):
    return [sum((value - 0.4) ** 2 for value in configuration.params.values())]


def view_of(columns=2, **settings):
    return SearchView(Space.of({f"x{i}": Float(0.0, 1.0) for i in range(columns)}), 0, **settings)


def asked(view, trials=6, count=1, loss=bowl):
    """Return who proposes after so many trials."""
    play(QuasiRandomSearcher(), view, trials, loss)
    numbers = list(range(trials, trials + count))
    found = DefaultSearcher().ask(view, numbers)
    searchers = {c.origin["searcher"] for c in found}
    searcher = {"gp": GaussianProcessSearcher(), "forest": ForestSearcher(), "cma-es": WideSearcher()}[searchers.pop()]
    assert found == searcher.ask(view, numbers)
    return found[0].origin["searcher"]


def test_a_process_is_asked_while_little_is_known_of_few_columns():
    assert asked(view_of()) == "gp"
    assert asked(view_of(20), 22) == "gp"
    assert asked(view_of(21), 23) == "cma-es"
    assert asked(view_of(), 199) == "gp"
    assert asked(view_of(), 200) == "forest"
    assert asked(view_of(), 6, count=195) == "forest"


def test_the_forest_is_asked_for_what_only_it_was_measured_with():
    assert asked(view_of(21, bounds=[math.inf, 0.5]), 24, loss=two) == "forest"
    assert asked(view_of(21, objectives=2), 24, loss=two) == "forest"


def two(configuration, number):
    return [*bowl(configuration, number), configuration["x0"]]


def test_process_and_forest_take_turns_with_several_objectives():
    """Trial by trial, or batch by batch, as long as trials are few."""
    assert [asked(view_of(objectives=2), trials, loss=two) for trials in (6, 7, 8, 198, 200)] == [
        "gp", "forest", "gp", "gp", "forest",
    ]  # fmt: skip
    assert [asked(view_of(objectives=2), trials, count=8, loss=two) for trials in (8, 16, 24)] == [
        "forest", "gp", "forest",
    ]  # fmt: skip


def test_a_process_is_asked_under_constraints():
    bounds = [math.inf, 0.5]
    found = [asked(view_of(bounds=bounds), trials, loss=two) for trials in (6, 7, 199, 200)]
    assert found == ["gp", "gp", "gp", "forest"]


def test_columns_that_are_mostly_choices_are_the_forests():
    choices = {f"c{i}": Choice("a", "b") for i in range(12)} | {f"x{i}": Float(0.0, 1.0) for i in range(12)}
    view = SearchView(Space.of(choices), 0)
    assert asked(view, 25, loss=lambda c, n: [c["x0"]]) == "forest"


def test_a_worker_asks_whom_a_laptop_asks():
    view, alone = view_of(slot=3), view_of()
    assert asked(view) == "gp"
    assert asked(alone) == "gp"
    assert DefaultSearcher().ask(view, [6]) == DefaultSearcher().ask(alone, [6])
    for view in (view_of(slot=3), view_of()):
        assert asked(view, 200) == "forest"


@pytest.mark.parametrize("columns", [2, 21])
def test_where_trials_report_a_process_of_few_rows_is_asked(columns):
    """As long as the columns are few, and however many the trials; else the wide search is."""
    view = view_of(columns, epochs=9)
    for number, configuration in enumerate(QuasiRandomSearcher().ask(view, range(230))):
        view.propose(number, configuration)
        for epoch in range(1, 10):
            view.report(number, epoch, [bowl(configuration, number)[0] + 1 / epoch])
        view.result(number, bowl(configuration, number), epoch=9, complete=True)
    [found] = DefaultSearcher().ask(view, [230])
    searcher = GaussianProcessSearcher(max_rows=200) if columns == 2 else WideSearcher()
    assert [found] == searcher.ask(view, [230])


def test_open_trials_count():
    view = view_of()
    for number, configuration in enumerate(QuasiRandomSearcher().ask(view, range(1000, 1195))):
        view.propose(1000 + number, configuration)
    assert asked(view) == "forest"


def test_both_begin_with_the_same_trials():
    first = [
        [c.params for c in play(searcher, view_of(6), 7, bowl)]
        for searcher in (DefaultSearcher(), ForestSearcher(), GaussianProcessSearcher())
    ]
    assert first[0] == first[1] == first[2]


def test_a_study_that_names_none_has_it_and_goes_on_alike(tmp_path):
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    made = []
    for cuts in ((8,), (3, 8)):
        directory = tmp_path / str(len(cuts))
        for trials in cuts:
            with tw.Study(space, objectives="min loss", directory=directory, seed=4) as study:
                while len(study.trials) < trials:
                    configuration = study.ask()
                    study.tell(configuration, loss=bowl(configuration, 0)[0])
                made.append([(trial.params, trial.origin["searcher"]) for trial in study.trials])
    assert made[0] == made[2]
    assert {searcher for _, searcher in made[0]} == {"gp"}


def test_where_repeats_tell_no_more_it_looks_elsewhere():
    """A valley in a noisy plateau: a process that is sure of itself would repeat one row at the border for ever."""

    def loss(params):
        return 1 - math.exp(-((params["x"] - 0.21) ** 2 + (params["y"] - 0.316) ** 2) / 0.0625)

    def train(trial):
        noise = np.random.default_rng([3, trial.number])
        for epoch in trial.epochs():
            trial.report(loss=loss(trial.params) + 0.5 * epoch**-0.7 + noise.normal(0, 0.02))

    study = tw.Study(tw.Space(x=tw.Float(0, 1), y=tw.Float(0, 1)), "min loss", seed=3)
    study.run(train, trials=40, scheduler=tw.ASHA(max_epochs=27), engine=tw.Local(workers=0), progress=False)
    assert min(loss(trial.params) for trial in study.trials if trial.epoch == 27) < 0.1
    rows = {tuple(round(value, 2) for value in trial.params.values()) for trial in study.trials}
    assert len(rows) > 20
