"""BoTorch's processes and acquisitions as a surrogate of our loop: conformance, constraints, and that they search."""

import re
import subprocess
import sys

import numpy as np
import pytest

import trainwright as tw
from trainwright.errors import SearchError
from trainwright.search import RandomSearcher, SearchView
from trainwright.space import Choice, Float, Space, equals
from trainwright.testing.searcher import SearcherConformance, play

torch = pytest.importorskip("torch")
pytest.importorskip("botorch")


@pytest.mark.slow
class TestBoTorch(SearcherConformance):
    """Each result means a fit."""

    wide_spaces = False

    def make_searcher(self):
        return tw.BoTorchSearcher(initial=18, candidates=16, samples=16)


SPACE = Space(
    x=Float(0.0, 1.0), kind=Choice("a", "b"), y=Float(0.0, 1.0, when=equals("kind", "b")), z=Float(1e-3, 1.0, log=True),
)  # fmt: skip


def distance(configuration, number=0):
    values = configuration.params
    return [(values["x"] - 0.4) ** 2 + (values["kind"] == "a") + (values.get("y", 0.0) - 0.7) ** 2 + values["z"]]


def quick(**settings):
    return tw.BoTorchSearcher(initial=4, candidates=16, samples=16, **settings)


def test_it_searches():
    """After 22 trials it is far ahead of random search, and no state of torch has moved."""
    best = {}
    state = torch.get_rng_state()
    for name, searcher in {"botorch": tw.BoTorchSearcher(samples=32), "random": RandomSearcher()}.items():
        view = SearchView(SPACE, 1)
        play(searcher, view, 22, distance)
        best[name] = view.losses.min()
    assert best["botorch"] < 0.2 * best["random"]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_resumed_study_goes_on():
    """Failures and pending trials among what is known; a batch holds nothing twice."""

    def told(view, numbers, configurations):
        for number, configuration in zip(numbers, configurations, strict=True):
            view.propose(number, configuration)
            if number % 5 != 3:
                losses = None if number % 5 == 2 else distance(configuration)
                view.result(number, losses, epoch=None, complete=True)

    view = SearchView(SPACE, 2)
    batches = []
    for start in range(0, 9, 3):
        batches.append(quick().ask(view, range(start, start + 3)))
        told(view, range(start, start + 3), batches[-1])
    assert len({c.key for batch in batches for c in batch}) == 9
    again = SearchView(SPACE, 2)
    told(again, range(6), [c for batch in batches[:2] for c in batch])
    assert quick().ask(again, range(6, 9)) == batches[2]
    assert batches[2][0].origin == {"searcher": "botorch"}


def test_constraints_and_rungs():
    """What breaks a bound is no improvement; of trials with rungs the model sees each."""
    view = SearchView(Space(x=Float(0.0, 1.0)), 3, bounds=[np.inf, -0.5], epochs=9)  # minimise x, with x >= 0.5
    searcher, found = quick(), []
    for number in range(14):
        [configuration] = searcher.ask(view, [number])
        view.propose(number, configuration)
        x = found.append(configuration["x"]) or configuration["x"]
        for epoch in (1, 3, 9):
            view.report(number, epoch, [x + 1.0 / epoch, -x])
        view.result(number, [x, -x], epoch=9, complete=True)
    assert min(x for x in found if x >= 0.5) < 0.52
    assert np.mean(np.array(found[6:]) >= 0.45) > 0.7


@pytest.mark.slow
def test_two_objectives_are_searched_for_their_hypervolume():
    def both(configuration, number=0):
        x, y = configuration.params["x"], configuration.params["y"]
        return [x**2 + y**2, (x - 1.0) ** 2 + y**2]

    view = SearchView(Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0)), 4, objectives=2)
    done = play(quick(), view, 14, both)
    assert np.mean([c["y"] < 0.1 for c in done[5:]]) > 0.6  # the front is y = 0
    assert np.ptp([c["x"] for c in done[5:]]) > 0.5


def test_what_it_cannot_do_is_said():
    with pytest.raises(SearchError, match=re.escape("BoTorchSearcher.samples: got 1; allowed: ")):
        tw.BoTorchSearcher(samples=1)
    code = (
        "import sys; sys.modules['botorch'] = None; import trainwright as tw\n"
        "tw.Study(tw.Space(x=tw.Float(0, 1)), 'min loss', searcher=tw.BoTorchSearcher()).ask()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'BoTorchSearcher needs botorch: pip install ".[botorch]"' in ended.stderr
