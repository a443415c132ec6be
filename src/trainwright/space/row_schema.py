"""The schema of a row: which column belongs to which parameter, and which parameters are active.

All methods map whole matrices [rows, columns]; a settled matrix holds canonical units, and NaN exactly where the
conditions make a parameter inactive.
"""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

import numpy as np

from trainwright.aliases import Array
from trainwright.errors import SpaceError, TrialError, closest
from trainwright.space.columns import Columns, make_column
from trainwright.space.conditions import Comparison, Condition, Holds, evaluate_condition
from trainwright.space.configuration import canonical_json, is_number
from trainwright.space.parameters import Constant, Parameter, Varying

__all__ = ["RowSchema", "names_in", "order_by_needs"]


class RowSchema:
    """The columns of named parameters and the conditions between them."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self.parameters = parameters
        self.varying = {name: p for name, p in parameters.items() if isinstance(p, Varying)}
        self.index = {name: index for index, name in enumerate(self.varying)}
        self.columns = tuple(make_column(name, parameter) for name, parameter in self.varying.items())
        self.maps = Columns(list(self.varying.values()))
        # Conditions may name conditional parameters; a topological order puts parents first.
        needs = {name: names_in(p.when) for name, p in parameters.items()}
        for name, others in needs.items():
            for other in others:
                self._check_name(name, other)
        self.order = [name for name in order_by_needs(needs, "conditions") if name in self.index]
        self.conditions: dict[str, Holds] = {}  # of conditional columns, parents first
        for name in self.order:
            when = self.varying[name].when
            if when is not None:
                self.conditions[name] = self.bind(name, when)

    def bind(self, owner: str, condition: Condition) -> Holds:
        """Return the evaluation of a condition of the parameter `owner` over settled rows."""
        return condition.bind(lambda comparison, negated: self._bind_comparison(owner, comparison, negated=negated))

    def settle(self, U: Array) -> Array:
        """Return the settled rows of latent ones."""
        out = self.maps.snap_units(np.asarray(U, dtype=np.float64))
        # Parents first: a child of an inactive parent sees NaN there, and is inactive too.
        for name, holds in self.conditions.items():
            out[~holds(out), self.index[name]] = np.nan
        # Latent rows have no gaps; rows that were settled before may have some.
        if np.isnan(U).any():
            self._check_gaps(out)
        return out

    def _check_gaps(self, U: Array) -> None:
        # A gap is right where the parameter is inactive, and a mistake of the caller elsewhere.
        gaps = np.isnan(U)
        for name, index in self.index.items():
            gap = gaps[:, index]
            if name in self.conditions:
                gap = gap & self.conditions[name](U)
            if gap.any():
                raise SpaceError(
                    f"settle: {name!r} is active in row {int(np.argmax(gap))} but NaN there; start from latent rows"
                )

    def _bind_comparison(self, owner: str, comparison: Comparison, *, negated: bool) -> Holds:
        parent, name, operation = self.parameters[comparison.name], comparison.name, comparison.operation
        # A constant decides the condition once for all rows.
        if isinstance(parent, Constant):
            fixed = self._compare_constant(owner, comparison, parent) is not negated
            return lambda U: np.full(len(U), fixed)
        if not isinstance(parent, Varying):
            raise SpaceError(f"{owner}: condition names {name!r}, which is derived; name what it is computed from")
        try:
            # Comparisons with order take any number between the bounds, the others only values of the parent.
            if operation in ("less", "greater"):
                [value] = comparison.values
                units = [parent.axis.place(parent.rank(name, value))]
            else:
                numbers = [parent.number(parent.clean(name, value)) for value in comparison.values]
                units = parent.axis.to_units(np.array(numbers)).tolist()
        except TrialError as error:
            sentence = str(error).removeprefix(f"{name}=")  # unless the parent would then be named nowhere
            raise SpaceError(f"{owner}: {sentence if name in sentence else error}") from None
        return evaluate_condition(self.index[name], operation, units, slack=parent.axis.slack, negated=negated)

    def _compare_constant(self, owner: str, comparison: Comparison, constant: Constant) -> bool:
        if comparison.operation in ("equals", "one_of"):
            return canonical_json(constant.value) in [canonical_json(value) for value in comparison.values]
        [value] = comparison.values
        if not is_number(value) or not is_number(constant.value):
            raise SpaceError(f"{owner}: {comparison} compares {constant.value!r} with {value!r}; both must be numbers")
        return bool(constant.value < value if comparison.operation == "less" else constant.value > value)

    def _check_name(self, owner: str, name: str) -> None:
        if name not in self.parameters:
            known = [other for other in self.parameters if other != owner]
            raise SpaceError(
                f"{owner}: condition names {name!r}; known: {', '.join(known) or 'none'}{closest(name, known)}"
            )


def order_by_needs(needs: Mapping[str, Iterable[str]], what: str) -> list[str]:
    """Return the names so that each comes after those it needs, or raise SpaceError that shows the cycle."""
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        # The message starts the cycle at the parameter that is listed first, whatever the sorter found first.
        cycle = error.args[1][:0:-1]  # each needs the next; the last one repeats the first
        first = min(range(len(cycle)), key=lambda index: list(needs).index(cycle[index]))
        path = [*cycle[first:], *cycle[: first + 1]]
        raise SpaceError(f"{what} form a cycle: {' -> '.join(path)}") from None


def names_in(condition: Condition | None) -> list[str]:
    """Return the names that a condition compares."""
    return [] if condition is None else [comparison.name for comparison in condition.comparisons()]
