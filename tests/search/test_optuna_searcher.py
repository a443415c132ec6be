"""Optuna's samplers as searchers: they pass the conformance class, and learn from what the view holds."""

import subprocess
import sys

import pytest

from trainwright.errors import MissingExtra, SearchError
from trainwright.integrations.optuna.searcher import OptunaSearcher
from trainwright.search import SearchView
from trainwright.space import Choice, Float, Int, Space, equals, require
from trainwright.testing.searcher import SearcherConformance, bowl, play

optuna = pytest.importorskip("optuna")


class TestRandomByName(SearcherConformance):
    def make_searcher(self):
        return OptunaSearcher("RandomSampler")


@pytest.mark.slow
class TestTPE(SearcherConformance):
    def make_searcher(self):
        return OptunaSearcher(optuna.samplers.TPESampler(n_startup_trials=5, multivariate=True, constant_liar=True))


@pytest.mark.slow
class TestGaussianProcess(SearcherConformance):
    """Over torch; what has no number, or a huge one, is more than it survives."""

    wide_spaces = False

    def make_searcher(self):
        pytest.importorskip("torch")
        return OptunaSearcher(optuna.samplers.GPSampler(n_startup_trials=20))

    def test_failures_and_strange_losses_are_survived(self):
        """Failures are."""
        view = SearchView(self.conditional_space(), 6)
        play(self.make_searcher(), view, 22, lambda c, n: None if n % 3 else bowl(c, n))


SPACE = Space(
    require("width * depth <= 512"),
    rate=Float(1e-5, 1e-1, log=True),
    drop=Float(0.0, 0.5, step=0.1),
    width=Int(16, 256, log=True),
    depth=Int(1, 8),
    size=Choice("small", "medium", "large", ordered=True),
    optimizer=Choice("sgd", "adamw", (1, 2)),
    momentum=Float(0.0, 0.99, when=equals("optimizer", "sgd")),
)


class Watching(optuna.samplers.RandomSampler):
    """A sampler that keeps what it is shown."""

    seen = ()

    def infer_relative_search_space(self, study, trial):
        type(self).seen = [t for t in study.get_trials() if t.number != trial.number]
        return {}


def watch(view, number):
    [configuration] = OptunaSearcher(Watching()).ask(view, [number])
    return configuration, Watching.seen


def test_what_the_sampler_is_shown():
    """Results, failures, stops and pending trials, with the active parameters only, at their places."""
    view = SearchView(SPACE, 0, epochs=27)
    fixed = {"rate": 1e-3, "drop": 0.3, "width": 32, "depth": 2, "size": "large"}
    for number, more in enumerate([{"optimizer": "sgd", "momentum": 0.5}, {"optimizer": "adamw"}]):
        view.propose(number, SPACE.configuration_of(fixed | more))
    for number in (2, 3, 4):
        view.propose(number, SPACE.configuration_of(fixed | {"optimizer": (1, 2), "depth": number}))
    view.result(0, [0.25], epoch=27, complete=True)
    view.result(1, None, epoch=None, complete=False)
    view.report(2, 9, [0.75])
    view.result(2, [0.75], epoch=9, complete=False)
    view.withdraw(3)
    configuration, seen = watch(view, 5)
    shown = {t.params.get("depth", 0) + 1: t for t in seen if t.state.name != "FAIL"}
    states = sorted(t.state.name for t in seen)
    assert states == ["COMPLETE", "FAIL", "PRUNED", "RUNNING"]  # the withdrawn one is gone
    complete = next(t for t in seen if t.state.name == "COMPLETE")
    assert complete.params == {
        "rate": pytest.approx(1e-3), "drop": 3, "width": 32, "depth": 1, "size": 2, "optimizer": 0,
        "momentum": pytest.approx(0.5),
    }  # fmt: skip
    assert complete.value == 0.25
    assert shown[2].state.name == "PRUNED"
    assert list(shown[2].intermediate_values.values()) == [0.75]
    assert shown[4].state.name == "RUNNING"
    assert "momentum" not in shown[4].params
    assert SPACE.check(configuration.params) == []


def test_a_late_result_of_a_failed_trial_is_learnt():
    view = SearchView(SPACE, 0)
    searcher = OptunaSearcher(Watching())
    [first] = searcher.ask(view, [0])
    view.propose(0, first)
    view.result(0, None, epoch=None, complete=False)
    searcher.ask(view, [1])
    view.result(0, [0.5], epoch=None, complete=True)
    searcher.ask(view, [1])
    assert [t.value for t in Watching.seen if t.state.name == "COMPLETE"] == [0.5]


def test_batches_are_pending_to_each_other():
    """The second of a batch sees the first as running, and a question that came to nothing leaves no trace."""
    view = SearchView(SPACE, 0)
    searcher = OptunaSearcher(Watching())
    batch = searcher.ask(view, [0, 1, 2])
    assert [t.state.name for t in Watching.seen] == ["RUNNING", "RUNNING"]
    assert searcher.ask(view, [0, 1, 2]) == batch
    assert [t.state.name for t in Watching.seen if t.state.name != "FAIL"] == ["RUNNING", "RUNNING"]


def test_tpe_finds_the_bowl():
    """It learns: the later trials are nearer to the middle than random ones."""
    space = Space(x=Float(-1.0, 1.0), y=Float(-1.0, 1.0))

    def loss(c, number):
        return [(c["x"] - 0.3) ** 2 + (c["y"] + 0.2) ** 2]

    done = play(OptunaSearcher(), SearchView(space, 0), 45, loss)
    late = sorted(loss(c, 0)[0] for c in done[-15:])
    assert late[7] < 0.25  # of a random one: 0.5
    assert done[0].origin["searcher"] == "TPESampler"


def test_samplers_that_remember_in_their_trials():
    """QMC keeps its place in trials' attributes: one study gives each point of the sequence once."""
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    done = play(OptunaSearcher("QMCSampler"), SearchView(space, 0), 17, bowl)
    for quarter in range(4):
        assert 3 <= sum(int(c["x"] * 4) == quarter for c in done[1:]) <= 5


@pytest.mark.parametrize("given", [3, optuna.samplers.TPESampler, None])
def test_what_is_no_sampler_is_refused(given):
    with pytest.raises(SearchError, match=r"allowed: a sampler, such as optuna\.samplers\.TPESampler\(\)"):
        OptunaSearcher(given)


def test_a_name_that_optuna_does_not_have(monkeypatch):
    view = SearchView(SPACE, 0)
    with pytest.raises(SearchError, match=r"no sampler 'TPSampler'; allowed: .*did you mean 'TPESampler'"):
        OptunaSearcher("TPSampler").ask(view, [0])
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match="OptunaSearcher needs optuna"):
        OptunaSearcher().ask(view, [0])


def test_nothing_is_said_about_the_inner_study():
    """Optuna announces studies on stderr; this one is nobody's business."""
    code = (
        "import trainwright as tw; s = tw.Study(tw.Space(x=tw.Float(0, 1)), 'min loss', searcher=tw.OptunaSearcher())\n"
        "for _ in range(3): s.tell(s.ask(), loss=1.0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
