"""Our searchers as samplers of Optuna: they pass the tests that Optuna publishes for samplers."""

import pickle
import subprocess
import sys

import pytest

from trainwright.errors import SearchError
from trainwright.search import ForestSearcher, QuasiRandomSearcher

optuna = pytest.importorskip("optuna")
from optuna.testing.pytest_samplers import (  # noqa: E402 -- after the skip
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)

from trainwright.integrations.optuna.sampler import TrainwrightSampler  # noqa: E402 -- likewise


class TestForest(BasicSamplerTestCase, RelativeSamplerTestCase, MultiObjectiveSamplerTestCase):
    @pytest.fixture
    def sampler(self):
        return lambda: TrainwrightSampler(ForestSearcher(candidates=64))


@pytest.mark.slow
class TestQuasiRandom(BasicSamplerTestCase, RelativeSamplerTestCase, MultiObjectiveSamplerTestCase):
    @pytest.fixture
    def sampler(self):
        return lambda: TrainwrightSampler(QuasiRandomSearcher())


def study_of(sampler, **options):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=sampler, **options)


def objective(trial):
    x = trial.suggest_float("x", -1.0, 1.0)
    kind = trial.suggest_categorical("kind", ["line", "bowl"])
    if kind == "line":
        return abs(x) + 0.2
    return (x - trial.suggest_float("centre", 0.0, 0.5)) ** 2


def test_it_is_stateless():
    """A new sampler for each trial, sent through pickle, proposes what one sampler for all of them does."""
    whole = study_of(TrainwrightSampler(ForestSearcher(candidates=64), seed=3))
    whole.optimize(objective, n_trials=20)
    parts = study_of(None)
    for _ in range(20):
        parts.sampler = pickle.loads(pickle.dumps(TrainwrightSampler(ForestSearcher(candidates=64), seed=3)))
        parts.optimize(objective, n_trials=1)
    assert [t.params for t in parts.trials] == [t.params for t in whole.trials]
    other = study_of(TrainwrightSampler(ForestSearcher(candidates=64), seed=4))
    other.optimize(objective, n_trials=3)
    assert [t.params for t in other.trials] != [t.params for t in whole.trials[:3]]


def contents(view):
    """Return what a view holds, whatever the order of arrival."""
    told = zip(view.numbers, view.rows, view.losses, view.complete, view.progress, strict=True)
    rows = sorted((n, *r.tolist(), *v.tolist(), c, p) for n, r, v, c, p in told)
    return rows, sorted(view.pending.tolist()), view.tried


def shown(study, sampler, number):
    """Return what the sampler's searcher is shown when it is asked for one more trial of this number."""
    noting = Noting()
    sampler.searcher = noting
    trial = optuna.create_trial(state=optuna.trial.TrialState.RUNNING)
    trial.number = number
    sampler.sample_relative(study, trial, {"x": optuna.distributions.FloatDistribution(-1.0, 1.0)})
    return contents(noting.view)


def test_what_arrives_late_and_out_of_order_is_read_once():
    """Trials that overlap and end in any order, from elsewhere too: the view that grew holds what a new one holds."""
    study = study_of(TrainwrightSampler(ForestSearcher(candidates=32)))
    grown, waiting = TrainwrightSampler(), []
    states = optuna.trial.TrialState
    ends = {0: {"state": states.FAIL}, 1: {"state": states.PRUNED}, 2: {"values": 0.25}}
    first = study.ask()
    first.suggest_float("x", -1.0, 1.0)
    for epoch in range(9):  # the length of a full trial is known from here on
        first.report(0.5, epoch)
    study.tell(first, 0.5)
    for step in range(40):
        trial = study.ask()
        trial.suggest_float("x", -1.0, 1.0)
        trial.report(0.5, 3)
        waiting.append(trial)
        if step % 3 == 1:  # another process adds one that has ended
            shapes = {"x": optuna.distributions.FloatDistribution(-1.0, 1.0)}
            study.add_trial(optuna.create_trial(params={"x": 0.5 - step / 40}, distributions=shapes, value=1.0))
        if step % 2:
            study.tell(waiting.pop((7 * step) % len(waiting)), **ends[step % 3])
        assert shown(study, grown, 10_000) == shown(study, TrainwrightSampler(), 10_000)


def test_another_range_is_another_view():
    """Trials outside a new range are left out again, and come back with the old one."""
    searcher = Noting()
    study = study_of(TrainwrightSampler(searcher))
    for high in (1.0, 1.0, 0.25, 1.0):
        trial = study.ask()
        trial.suggest_float("y", 0.0, high)
        kept = [t for t in study.trials[:-1] if t.params["y"] <= high]
        assert searcher.view.count == len(kept)
        study.tell(trial, 1.0)


def test_one_sampler_for_threads_and_for_several_studies():
    """Threads share it; each study has a view of its own."""
    sampler = TrainwrightSampler(ForestSearcher(candidates=32))
    studies = [study_of(sampler), study_of(sampler)]
    for study in studies:
        study.optimize(objective, n_trials=24, n_jobs=4)
        assert [t.state.name for t in study.trials] == ["COMPLETE"] * 24
    assert len({(t.params["kind"], t.params["x"]) for t in studies[0].trials}) == 24


def test_it_learns():
    """The forest finds the bowl's floor in 40 trials, and where a maximum is asked for, that."""
    study = study_of(TrainwrightSampler())
    study.optimize(objective, n_trials=40)
    assert study.best_value < 0.01
    study = study_of(TrainwrightSampler(), direction="maximize")
    study.optimize(lambda trial: -((trial.suggest_float("x", -1.0, 1.0) - 0.3) ** 2), n_trials=25)
    assert study.best_value > -0.01


class Noting:
    """A searcher that keeps the view that it is asked with."""

    def ask(self, view, numbers):
        self.view = view
        return ForestSearcher(candidates=64).ask(view, numbers)


def test_what_the_searcher_is_shown():
    """Complete, pruned, failed and running trials; trials without the parameters, or outside the bounds, are not."""
    searcher = Noting()
    study = study_of(TrainwrightSampler(searcher), direction="maximize")
    shape = optuna.distributions.FloatDistribution(0.0, 2.0)
    states = optuna.trial.TrialState
    for x, state in ((0.25, states.COMPLETE), (0.5, states.PRUNED), (0.75, states.FAIL), (1.5, states.COMPLETE)):
        study.add_trial(
            optuna.create_trial(
                state=state, params={"x": x}, distributions={"x": shape},
                value=x if state is not states.FAIL else None,
                intermediate_values={0: 0.1, 8: x} if state is states.PRUNED else {},
            )
        )  # fmt: skip
    study.ask({"x": optuna.distributions.FloatDistribution(0.0, 1.0)})  # running, within the new bounds
    study.add_trial(
        optuna.create_trial(params={"y": 1}, distributions={"y": optuna.distributions.IntDistribution(0, 3)}, value=1.0)
    )
    trial = study.ask()
    trial.suggest_float("x", 0.0, 1.0)
    view = searcher.view
    assert set(view.numbers.tolist()) == {0, 1, 2}
    assert len(view.pending) == 1
    assert view.losses[view.complete & ~view.failed].tolist() == [[-0.25]]
    assert view.failed.sum() == 1


def test_choices_may_be_anything():
    """Texts, None, and values that Python takes for equal keep their places."""
    study = study_of(TrainwrightSampler())
    seen = set()
    for _ in range(20):
        trial = study.ask()
        seen.add(repr(trial.suggest_categorical("c", [None, "a", 1.5, True])))
        study.tell(trial, 1.0)
    assert seen == {"None", "'a'", "1.5", "True"}


def test_two_objectives():
    study = study_of(TrainwrightSampler(ForestSearcher(candidates=64)), directions=["minimize", "maximize"])
    study.optimize(lambda t: (t.suggest_float("x", 0, 1) ** 2, t.suggest_int("k", 1, 5)), n_trials=25)
    assert len(study.best_trials) >= 1


@pytest.mark.parametrize(("arguments", "sentence"), [((3,), "got 3; allowed: a searcher"), ((None, -1), "got -1")])
def test_bad_settings(arguments, sentence):
    searcher, seed = (*arguments, 0)[:2]
    with pytest.raises(SearchError, match=sentence):
        TrainwrightSampler(searcher, seed=seed)


def test_without_optuna_the_line_to_install_it():
    code = "import sys; sys.modules['optuna'] = None\nimport trainwright as tw\ntw.TrainwrightSampler"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'TrainwrightSampler needs optuna: pip install ".[optuna]"' in done.stderr
