"""Local search beyond persistence: plans in which a value is dropped before its backward and made again.

A plan is a row of kept values per stage d: what is alive when the gradient of stage d arrives. Between two rows the
operations are determined. A move changes a digit of a row, keeps a value longer, or begins to keep it earlier; all
moves of one round are tried together, by a shortest path through the rows that they lead to, so moves that only pay
in combination are found as well. A round's plan counts only if the simulator shows less time within the budget.
"""

import numpy as np
from numpy.typing import NDArray

from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import Operation, OperationKind, Value
from trainwright.plan.memory.simulate import simulate
from trainwright.plan.memory.sizes import sizes_of
from trainwright.plan.memory.skip_connections import count_skips
from trainwright.randomness import rng

__all__ = ["improve_plan"]

_Rows = dict[int, tuple[int, ...]]
_LEAST_GAIN = 1e-9


def improve_plan(
    chain: Chain,
    budget_bytes: int,
    operations: tuple[Operation, ...],
    *,
    rounds: int = 60,
    work: float = 3e7,
    seed: int = 0,
) -> tuple[Operation, ...]:
    """Return a plan that is at least as fast within the budget; the given one, without copies, must be valid.

    `work` bounds the steps of a round, and so how many rows are tried for each stage; the result depends on the
    arguments alone, not on the machine.
    """
    # Rounds of moves around the best plan known; it ends where several rounds in a row find nothing.
    best, before = operations, simulate(chain, operations, budget_bytes=budget_bytes)
    seconds, alive = before.seconds, before.skip_bytes_by_stage
    search = _Search(count_skips(chain, alive), budget_bytes - chain.fixed_bytes, work)
    rows, stale = search.rows_of(operations), 0
    for each in range(rounds):
        found, path = search.run_round(rows, seconds * (1 - _LEAST_GAIN), rng(seed, "memory moves", each))
        if found is not None:
            simulation = simulate(chain, found)
            better = simulation.peak_bytes <= budget_bytes and simulation.seconds < seconds
            if chain.skips:  # the next round counts what is alive of them in the best plan, and in those refused since
                most = simulation.skip_bytes_by_stage
                alive = most if better else tuple(map(max, alive, most))
                search = _Search(count_skips(chain, alive), budget_bytes - chain.fixed_bytes, work)
            if better:
                best, seconds, rows, stale = found, simulation.seconds, path, 0
                continue
        stale += 1
        if stale >= search.patience:
            break
    return best


class _Search:
    patience = 6

    def __init__(self, chain: Chain, room: int, work: float) -> None:
        self.n = len(chain.steps)
        self.sizes = sizes_of(chain)
        self.options = [len(step.options) + 1 for step in chain.steps]
        self.digits = np.array([1, *(2 + count for count in self.options)])
        self.room = room
        self.width = int(min(320, max(12, (work / self.n**2) ** 0.5)))

    def rows_of(self, operations: tuple[Operation, ...]) -> _Rows:
        """Return what a plan keeps for each stage."""
        alive = [0] * (self.n + 1)
        rows, gradient, fresh = {self.n: tuple(alive)}, self.n, False
        for operation in operations:
            stage = operation.stage
            if operation.kind is OperationKind.DELETE:
                alive[stage] = 0
                continue
            if fresh:
                rows[gradient], fresh = self._clean_row(alive, gradient), False
            if operation.kind is OperationKind.BACKWARD:
                alive[stage], gradient, fresh = 0, stage - 1, True
            elif operation.kind is OperationKind.FORWARD_ALL:
                alive[stage] = 2 + operation.option
            else:
                alive[stage] = 1
                if operation.kind is OperationKind.FORWARD_DROP and alive[stage - 1] == 1:
                    alive[stage - 1] = 0
        return rows

    def _clean_row(self, row: "list[int] | tuple[int, ...]", stage: int) -> tuple[int, ...]:
        """Return a row without what nobody can read any more: a bare output of the stage, anything beyond it."""
        kept = [digit if i < stage or (i == stage and digit > 1) else 0 for i, digit in enumerate(row)]
        kept[0] = 0
        return tuple(kept)

    def run_round(
        self, rows: _Rows, bound: float, random: np.random.Generator
    ) -> tuple[tuple[Operation, ...] | None, _Rows]:
        """Return the best plan through the rows that moves lead to, and its rows; None if none is below the bound."""
        from trainwright.plan.memory._local_search import shortest_path

        # A layer of candidate rows for each stage, all joined by one shortest path.
        empty = np.zeros((1, self.n + 1), np.int64)
        layers = [empty, *(self._candidate_rows(rows, stage, random) for stage in range(1, self.n)), empty]
        begins = np.cumsum([0, *map(len, layers)])
        flat = np.concatenate(layers)
        path, seconds = shortest_path(self.sizes, self.room, bound, flat, begins)
        if not np.isfinite(seconds):
            return None, rows
        chosen = {stage: tuple(flat[path[stage]].tolist()) for stage in range(self.n + 1)}
        return self._list_operations(chosen), chosen

    def _candidate_rows(self, rows: _Rows, stage: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Return the rows that moves lead to: those of this and the next stages, with up to four digits changed."""
        own = self._clean_row(rows[stage], stage)
        earlier = [*rows[stage - 1][:stage], *own[stage:]] if stage > 1 else own
        bases = np.array([own, self._clean_row(rows[stage + 1], stage), self._clean_row(earlier, stage)], np.int64)
        single = [
            (base, i, digit)
            for base in range(len(bases))
            for i in range(1, stage + 1)
            for digit in range(self.digits[i])
            if digit != bases[base, i]
        ]
        if len(single) > self.width // 2:
            single = [single[each] for each in random.permutation(len(single))[: self.width // 2]]
        changed = np.array([bases[base] for base, _, _ in single], np.int64).reshape(-1, self.n + 1)
        for each, (_, i, digit) in enumerate(single):
            changed[each, i] = digit
        several = bases[random.integers(len(bases), size=self.width // 2)]
        counts = random.integers(2, 5, size=len(several))
        for turn in range(4):
            places = random.integers(1, stage + 1, size=len(several))
            digits = random.integers(1 << 30, size=len(several)) % self.digits[places]
            mask = counts > turn
            several[mask, places[mask]] = digits[mask]
        found = np.concatenate([bases, changed, several])
        found[found[:, stage] == 1, stage] = 0  # a bare output that nobody reads
        return np.unique(found, axis=0)

    def _list_operations(self, rows: _Rows) -> tuple[Operation, ...] | None:
        """Return the operations that rows stand for."""
        from trainwright.plan.memory._local_search import list_phase

        listed: list[Operation] = []
        done = np.empty((4 * self.n + 8, 3), np.int64)
        scratch = (np.zeros(self.n + 2, np.int64), done)
        for d in range(self.n, 0, -1):
            pair = (np.array(rows[d]), np.array(rows[d - 1]))
            options = range(1 if rows[d][d] > 1 else self.options[d - 1])
            times = [list_phase(self.sizes, self.room, (d, option), pair, scratch)[0] for option in options]
            own = times.index(min(times))
            _, count = list_phase(self.sizes, self.room, (d, own), pair, scratch)
            for kind, stage, option in done[:count].tolist():
                _append_operation(listed, kind, stage, option)
        return tuple(listed)


def _append_operation(listed: list[Operation], kind: int, stage: int, option: int) -> None:
    if kind == 0:
        listed.append(Operation(OperationKind.FORWARD_ALL, stage, None, option))
    elif kind == 1:
        listed.append(Operation(OperationKind.FORWARD_KEEP, stage))
    elif kind == 3:
        listed.append(Operation(OperationKind.BACKWARD, stage))
    elif kind == 4 and listed and listed[-1] == Operation(OperationKind.FORWARD_KEEP, stage + 1):
        listed[-1] = Operation(OperationKind.FORWARD_DROP, stage + 1)
    else:
        listed.append(Operation(OperationKind.DELETE, stage, Value.OUTPUT if kind == 4 else Value.SAVED))
