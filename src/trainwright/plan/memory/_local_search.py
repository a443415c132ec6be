"""Kernels of local search: what it takes to go from one set of kept values to the next; see `local_search`.

A row says what is alive when the gradient of stage d has arrived: for each stage i <= d a digit, 0 nothing, 1 its bare
output, 2 + o what option o saves. From row to row the operations are determined: drop what is no longer wanted, run
forward what is missing, run the backward of d.
"""

import numpy as np

from trainwright.kernels import Ints, compiled
from trainwright.plan.memory.sizes import Sizes

__all__ = ["BACKWARD", "DELETE_OUTPUT", "DELETE_SAVED", "FORWARD_ALL", "FORWARD_KEEP", "list_phase", "shortest_path"]

FORWARD_ALL, FORWARD_KEEP, BACKWARD, DELETE_OUTPUT, DELETE_SAVED = 0, 1, 3, 4, 5


@compiled
def _emit_row(done: Ints, count: int, kind: int, stage: int, option: int) -> int:
    if count < len(done):
        done[count, 0], done[count, 1], done[count, 2] = kind, stage, option
    return count + 1


@compiled
def list_phase(
    sizes: Sizes, room: int, turn: tuple[int, int], rows: tuple[Ints, Ints], scratch: tuple[Ints, Ints]
) -> tuple[float, int]:
    """Return the seconds of a phase from one row to the next, inf if it does not fit, and its number of operations.

    `turn` is its stage d, and the option by which d is saved if it is not yet; `scratch` an array [n + 2], and one for
    the operations, which are written as far as it has room.
    """
    output, output_gradient, no_grad_temporary = sizes.output, sizes.output_gradient, sizes.no_grad_temporary
    no_grad_forward, first, forward = sizes.no_grad_forward, sizes.first, sizes.forward
    backward, saved = sizes.backward, sizes.saved
    temporary, backward_temporary = sizes.temporary, sizes.backward_temporary
    (d, own), (now, then), (runs, done) = turn, rows, scratch
    later_gradients = sizes.later_gradients
    # What is alive when the gradient of stage d arrives: that gradient, those of parameters, and the values of the row.
    used = output_gradient[d] + later_gradients[d]
    for i in range(1, d + 1):
        if now[i] == 1:
            used += output[i]
        elif now[i] > 1:
            used += saved[first[i - 1] + now[i] - 2]
    if used > room:
        return np.inf, 0
    # Which stages run forward: d itself unless it is saved, what the next row wants and this one has not, and, from
    # right to left, what such a run needs as its input.
    runs[d + 1] = 0
    for i in range(d, 0, -1):
        if i == d:
            runs[i] = now[i] < 2
        elif then[i] and now[i] != then[i]:
            if then[i] == 1 and now[i]:
                return np.inf, 0  # saved values do not become a bare output
            runs[i] = 1
        else:
            runs[i] = now[i] == 0 and (runs[i + 1] == 1 or i == d - 1)
    count, seconds = 0, 0.0
    # First drop what nobody reads any more in this phase.
    for i in range(1, d):
        if now[i] and not then[i] and not runs[i + 1] and i < d - 1:
            if now[i] == 1:
                used -= output[i]
                count = _emit_row(done, count, DELETE_OUTPUT, i, 0)
            else:
                used -= saved[first[i - 1] + now[i] - 2]
                count = _emit_row(done, count, DELETE_SAVED, i, 0)
    # Then run forward in order; a value that is made anew replaces the one that was there.
    for i in range(1, d + 1):
        if runs[i]:
            if now[i] == 1:
                used -= output[i]
                count = _emit_row(done, count, DELETE_OUTPUT, i, 0)
            elif now[i] > 1:
                used -= saved[first[i - 1] + now[i] - 2]
                count = _emit_row(done, count, DELETE_SAVED, i, 0)
            wanted = 2 + own if i == d else then[i]
            if wanted > 1:
                o = first[i - 1] + wanted - 2
                if used + saved[o] + temporary[o] > room:
                    return np.inf, 0
                used += saved[o]
                seconds += forward[o]
                count = _emit_row(done, count, FORWARD_ALL, i, wanted - 2)
            else:
                if used + output[i] + no_grad_temporary[i - 1] > room:
                    return np.inf, 0
                used += output[i]
                seconds += no_grad_forward[i - 1]
                count = _emit_row(done, count, FORWARD_KEEP, i, 0)
            before = i - 1
            if before and not then[before] and i < d:  # only this stage has read it
                if now[before] > 1:
                    used -= saved[first[before - 1] + now[before] - 2]
                    count = _emit_row(done, count, DELETE_SAVED, before, 0)
                else:
                    used -= output[before]
                    count = _emit_row(done, count, DELETE_OUTPUT, before, 0)
    # Last the backward of d, with the gradient of its input and those of its parameters beside all that is alive.
    o = first[d - 1] + (now[d] - 2 if now[d] > 1 else own)
    if used + output_gradient[d - 1] + later_gradients[d - 1] - later_gradients[d] + backward_temporary[o] > room:
        return np.inf, 0
    seconds += backward[o]
    count = _emit_row(done, count, BACKWARD, d, 0)
    if d > 1 and not then[d - 1]:
        held = now[d - 1] > 1
        count = _emit_row(done, count, DELETE_SAVED if held else DELETE_OUTPUT, d - 1, 0)
    return seconds, count


@compiled
def shortest_path(sizes: Sizes, room: int, bound: float, rows: Ints, begins: Ints) -> tuple[Ints, float]:
    """Return the best sequence of rows, one per stage, as places in `rows`, and its seconds, inf if not below `bound`.

    The candidates of stage d stand at begins[d] to begins[d + 1] - 1, for d = 0..n; n and 0 have one each: no values.
    """
    cheapest, first, backward, n = sizes.cheapest, sizes.first, sizes.backward, sizes.no_grad_forward.size
    best, came = np.full(len(rows), np.inf), np.full(len(rows), -1)
    runs, none = np.zeros(n + 2, np.int64), np.empty((0, 3), np.int64)
    # Dijkstra over layers: rows of stage d lead to rows of stage d - 1, at the seconds of the phase between them.
    best[begins[n]] = 0.0
    for d in range(n, 0, -1):
        for place in range(begins[d], begins[d + 1]):
            now, least = rows[place], best[place]
            for i in range(1, d + 1):
                least += min(backward[first[i - 1] + now[i] - 2], cheapest[i - 1]) if now[i] > 1 else cheapest[i - 1]
            if least >= bound:
                continue  # what has to follow is too much
            options = 1 if now[d] > 1 else first[d] - first[d - 1]
            for target in range(begins[d - 1], begins[d]):
                for own in range(options):
                    seconds, _ = list_phase(sizes, room, (d, own), (now, rows[target]), (runs, none))
                    if best[place] + seconds < best[target]:
                        best[target], came[target] = best[place] + seconds, place
    # Follow the predecessors from the empty row of stage 0 back to the start.
    path = np.empty(n + 1, np.int64)
    path[0] = 0
    if best[0] == np.inf:
        return path, np.inf
    for d in range(n):
        path[d + 1] = came[path[d]]
    return path, best[0]
