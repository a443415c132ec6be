"""What every searcher promises, as tests that any searcher inherits.

    class TestMine(SearcherConformance):
        def make_searcher(self):
            return Mine()

Needs no test library of its own: any runner that collects classes and methods named test will do.
"""
# ruff: noqa: S101 -- a test kit is made of asserts

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from trainwright.errors import SpaceExhausted
from trainwright.search.searcher import Searcher
from trainwright.search.view import SearchView
from trainwright.space import (
    Choice,
    Derived,
    Float,
    Int,
    Space,
    all_of,
    any_of,
    equals,
    greater,
    less,
    not_,
    one_of,
    require,
)
from trainwright.space.configuration import Configuration
from trainwright.space.parameters import Parameter

__all__ = ["PARENTS", "SearcherConformance", "parent_space", "play"]

Loss = Callable[[Configuration, int], Sequence[float] | None]  # of a configuration and its number; None: it failed


PARENTS: dict[str, tuple[Parameter, object, object]] = {
    "float": (Float(0.0, 1.0), 0.5, 0.8),
    "float with odd bounds": (Float(1.3, 3.74), 2.52, 3.74),  # whose middle is not what rounding makes of it
    "log float": (Float(1e-5, 1e-1, log=True), 1e-3, 1e-5),
    "stepped float": (Float(0.0, 1.0, step=0.1), 0.5, 0.3),
    "int": (Int(1, 9), 5, 7),
    "log int": (Int(1, 256, log=True), 16, 64),
    "stepped int": (Int(0, 100, step=10), 50, 30),
    "ordered choice": (Choice("small", "medium", "large", ordered=True), "medium", "large"),
    "choice": (Choice("a", "b", "c"), "b", "c"),
}
"""A parent of each kind, and two of its values to compare it with."""


def parent_space(kind: str) -> Space:
    """Return a space in which one parent of a kind decides, by every comparison, which children live."""
    parent, value, other = PARENTS[kind]
    # Choices without order cannot be above or below a value.
    below, above = (equals, lambda name, value: not_(equals(name, value))) if kind == "choice" else (less, greater)
    return Space(
        require("nested + loose <= 1.5"),
        parent=parent,
        low=Float(0.0, 1.0, when=below("parent", value)),
        high=Float(1e-3, 1.0, log=True, when=above("parent", value)),
        same=Int(1, 9, when=one_of("parent", value, other)),
        differs=Choice("x", "y", "z", when=not_(equals("parent", value))),
        nested=Float(0.0, 1.0, when=all_of(greater("high", 0.1), not_(below("parent", other)))),
        loose=Float(0.0, 1.0, when=any_of(less("low", 0.5), greater("nested", 0.5), equals("same", 3))),
        size=Derived("nested * 2 + loose"),
    )


def play(searcher: Searcher, view: SearchView, trials: int, loss: Loss, *, start: int = 0) -> list[Configuration]:
    """Run `trials` trials one after the other, numbered from `start`, and return their configurations."""
    done = []
    for number in range(start, start + trials):
        [configuration] = searcher.ask(view, [number])
        view.propose(number, configuration)
        view.result(number, loss(configuration, number), epoch=None, complete=True)
        done.append(configuration)
    return done


def bowl(configuration: Configuration, number: int) -> list[float]:
    """Return a loss that depends on every number and choice of a configuration; `number` plays no part."""
    del number
    values = [v if isinstance(v, int | float) else len(str(v)) for v in configuration.params.values()]
    # The logarithm keeps one large number from hiding all the others.
    return [sum(math.log1p(abs(float(v) - 0.3)) for v in values)]


class SearcherConformance(ABC):
    """Inherit as Test<Searcher> and give `make_searcher`; set to False what the searcher does not claim."""

    several_objectives: ClassVar[bool] = True
    wide_spaces: ClassVar[bool] = True  # of 200 parameters

    @abstractmethod
    def make_searcher(self) -> Searcher:
        """Return a searcher; called once for every run, so that state of its own would show."""

    def conditional_space(self) -> Space:
        """Return a space with every kind of column, a condition and a requirement."""
        return Space(
            require("width * depth <= 512"),
            rate=Float(1e-5, 1e-1, log=True),
            width=Int(16, 256, log=True),
            depth=Int(1, 8),
            size=Choice("small", "medium", "large", ordered=True),
            optimizer=Choice("sgd", "adamw", "lion"),
            momentum=Float(0.0, 0.99, when=equals("optimizer", "sgd")),
        )

    def finite_space(self) -> Space:
        """Return a space of 54 legal points; its columns would allow 3 * 4 * 5 * 2 = 120."""
        return Space(
            require("a + b <= 5"),
            a=Int(1, 3),
            b=Int(1, 4),
            c=Choice("v", "w", "x", "y", "z"),
            d=Choice(False, True, when=equals("c", "x")),
        )

    def test_every_proposal_is_legal_and_new(self) -> None:
        """Proposals meet conditions and requirements, carry their number, and none repeats another."""
        view = SearchView(self.conditional_space(), 1)
        done = play(self.make_searcher(), view, 40, bowl)
        assert [c.number for c in done] == list(range(40))
        assert all(view.space.check(c.params) == [] for c in done)
        assert len({c.key for c in done}) == 40

    def test_conditions_on_every_kind_of_parent(self) -> None:
        """Whatever a condition compares, and however, proposals are legal and new: also behind a threshold."""
        for kind in PARENTS:
            view = SearchView(parent_space(kind), 10)
            done = play(self.make_searcher(), view, 25, bowl)
            assert [view.space.check(c.params) for c in done] == [[]] * 25, kind
            assert len({c.key for c in done}) == 25, kind

    def test_a_proposal_is_a_function_of_settings_view_and_number(self) -> None:
        """Asked twice, by another instance, or without the scratch: the same proposal, and the view unchanged."""
        view = SearchView(self.conditional_space(), 2)
        play(self.make_searcher(), view, 25, bowl)
        searcher = self.make_searcher()
        # Asking must not change what is known.
        tried, count = set(view.tried), view.count
        first = searcher.ask(view, [25, 26])
        assert searcher.ask(view, [25, 26]) == first
        # The scratch may be lost at any time, as in another process.
        view.memo.clear()
        assert self.make_searcher().ask(view, [25, 26]) == first
        assert (view.tried, view.count) == (tried, count)

    def test_proposals_leave_global_randomness_alone(self) -> None:
        """No global generator is read or moved."""
        # The same state before and after: nothing was drawn from it.
        np.random.seed(5)  # noqa: NPY002 -- the global state is what is tested
        view = SearchView(self.conditional_space(), 2)
        first = play(self.make_searcher(), view, 20, bowl)
        after = np.random.random()  # noqa: NPY002
        np.random.seed(5)  # noqa: NPY002
        assert after == np.random.random()  # noqa: NPY002
        np.random.seed(6)  # noqa: NPY002
        assert play(self.make_searcher(), SearchView(self.conditional_space(), 2), 20, bowl) == first

    def test_seeds_differ(self) -> None:
        """Two studies that differ by their seed alone do not try the same configurations (an exhaustive grid may)."""
        first, second = (
            play(self.make_searcher(), SearchView(self.conditional_space(), seed), 20, bowl) for seed in (0, 1)
        )
        assert first != second

    def test_a_resumed_study_goes_on_as_if_never_interrupted(self) -> None:
        """A view that is built anew in order of trial numbers gives the proposals of an uninterrupted run."""
        space = self.conditional_space()
        # Cuts lie in the initial design, just after it and far behind it.
        whole = play(self.make_searcher(), SearchView(space, 3), 60, self._mixed)
        for cut in (1, 20, 37, 59):
            view = SearchView(space, 3)
            for number, configuration in enumerate(whole[:cut]):
                view.propose(number, configuration)
                view.result(number, self._mixed(configuration, number), epoch=None, complete=True)
            assert play(self.make_searcher(), view, 60 - cut, self._mixed, start=cut) == whole[cut:]

    def test_batches_hold_no_duplicates_and_nothing_pending(self) -> None:
        """Whatever is under way is proposed again neither by a batch nor by single questions."""
        searcher, view = self.make_searcher(), SearchView(self.finite_space(), 4)
        keys = []
        # 48 of 54 points, so that a point would soon come twice if nothing prevented it.
        for start in range(0, 48, 8):
            batch = searcher.ask(view, range(start, start + 8))
            assert len(batch) == 8
            keys += [c.key for c in batch]
            for configuration in batch:
                view.propose(configuration.number or 0, configuration)
            for number in range(start, start + 5):  # three of each batch stay pending
                view.result(number, bowl(batch[number - start], number), epoch=None, complete=True)
        assert len(set(keys)) == 48

    def test_a_finite_space_is_searched_to_its_end(self) -> None:
        """Every configuration is tried once, and then the searcher says that nothing is left."""
        searcher, view = self.make_searcher(), SearchView(self.finite_space(), 5)
        size = view.space.size or 0
        assert len({c.key for c in play(searcher, view, size, bowl)}) == size
        for numbers in ([size], [size + 1, size + 2]):
            try:
                searcher.ask(view, numbers)
            except SpaceExhausted:
                continue
            raise AssertionError("SpaceExhausted was not raised when all configurations had been tried")

    def test_failures_and_strange_losses_are_survived(self) -> None:
        """All failed, all equal, one result only, no number, huge numbers, and a mixture of these."""
        losses: dict[str, Loss] = {
            "all failed": lambda c, n: None,  # noqa: ARG005 -- the two arguments of a loss
            "all equal": lambda c, n: [1.0],  # noqa: ARG005
            "one result": lambda c, n: [1.0] if n == 0 else None,  # noqa: ARG005
            "all nan": lambda c, n: [math.nan],  # noqa: ARG005
            "huge": lambda c, n: [1e300 * (-1) ** n * (n + 1)],  # noqa: ARG005
            "mixture": self._mixed,
        }
        for loss in losses.values():
            view = SearchView(self.conditional_space(), 6)
            done = play(self.make_searcher(), view, 30, loss)
            assert all(view.space.check(c.params) == [] for c in done)

    def test_one_parameter_and_two_hundred(self) -> None:
        """The smallest spaces and wide ones work before and after the first results."""
        # A single column, with and without order, has no other column to choose.
        spaces = [Space(x=Float(0.0, 1.0)), Space(x=Choice("a", "b", "c", "d", "e"))]
        if self.wide_spaces:
            spaces.append(Space.of({f"x{i}": Float(0.0, 1.0) if i % 2 else Choice("a", "b") for i in range(200)}))
        for space in spaces:
            view = SearchView(space, 7)
            done = play(self.make_searcher(), view, 5, bowl)
            assert len({c.key for c in done}) == 5

    def test_intermediate_values_and_stops_are_understood(self) -> None:
        """Reports, stopped, paused and withdrawn trials, with and without a known number of epochs."""
        # With a known length, and with none, where rungs are told at the end.
        for epochs in (27, None):
            searcher, view = self.make_searcher(), SearchView(self.conditional_space(), 8, epochs=epochs)
            for number in range(40):
                [configuration] = searcher.ask(view, [number])
                view.propose(number, configuration)
                if number % 7 == 6:
                    view.withdraw(number)
                    continue
                # Trials that end at each rung, and one in four at full length.
                last = (1, 3, 9, 27)[number % 4]
                [final] = bowl(configuration, number)
                for epoch in range(1, last + 1):
                    view.report(number, epoch, [final + 1.0 / epoch])
                view.result(number, [final + 1.0 / last], epoch=last, complete=last == 27)

    def test_two_objectives(self) -> None:
        """Studies of two objectives get legal, new, repeatable proposals, failures included."""
        if not self.several_objectives:
            return

        def loss(configuration: Configuration, number: int) -> list[float] | None:
            return None if number % 9 == 5 else [*bowl(configuration, number), float(configuration["width"])]

        runs = []
        for _ in range(2):
            view = SearchView(self.conditional_space(), 9, objectives=2)
            runs.append(play(self.make_searcher(), view, 40, loss))
            assert len({c.key for c in runs[-1]}) == 40
        assert runs[0] == runs[1]

    @staticmethod
    def _mixed(configuration: Configuration, number: int) -> list[float] | None:
        odd = {3: None, 8: [math.inf], 13: [1e300], 21: [math.nan], 22: [-1e300], 30: None}
        return odd[number] if number in odd else bowl(configuration, number)
