"""A chain's numbers as arrays, in the form that the compiled kernels read."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwright.model.chain import Chain

__all__ = ["Sizes", "sizes_of"]


class Sizes(NamedTuple):
    """Sizes in bytes, times in seconds, of n stages, the loss stage last.

    `output`, `output_gradient` and `later_gradients` [n + 1] are those of stages counted from 1, with the chain's input
    at 0; `no_grad_temporary`, `no_grad_forward`, `cheapest` [n] of stages from 0; the others of options, those of stage
    s (from 0) at first[s] to first[s + 1] - 1.
    """

    output: NDArray[np.int64]
    output_gradient: NDArray[np.int64]
    later_gradients: NDArray[np.int64]
    """The parameters' gradients of all stages behind this one: alive when the gradient of its output has arrived."""
    no_grad_temporary: NDArray[np.int64]
    no_grad_forward: NDArray[np.float64]
    cheapest: NDArray[np.float64]
    """Least seconds of forward and backward over the options."""
    first: NDArray[np.int64]
    forward: NDArray[np.float64]
    backward: NDArray[np.float64]
    saved: NDArray[np.int64]
    temporary: NDArray[np.int64]
    backward_temporary: NDArray[np.int64]


def sizes_of(chain: Chain) -> Sizes:
    """Return a chain's numbers as arrays."""
    steps = chain.steps
    choices = [step.choices if step.options else (step,) for step in steps]
    flat = [choice for each in choices for choice in each]
    least = [min(each.forward_seconds + each.backward_seconds for each in choice) for choice in choices]
    return Sizes(
        output=np.array([chain.input_bytes, *(step.output_bytes for step in steps)], np.int64),
        output_gradient=np.array(
            [chain.input_gradient_bytes, *(step.output_gradient_bytes for step in steps)], np.int64
        ),
        later_gradients=np.cumsum([0, *(step.parameter_gradient_bytes for step in reversed(steps))])[::-1].astype(
            np.int64
        ),
        no_grad_temporary=np.array([step.no_grad_temporary_bytes for step in steps], np.int64),
        no_grad_forward=np.array([step.no_grad_seconds for step in steps], np.float64),
        cheapest=np.array(least, np.float64),
        first=np.cumsum([0, *map(len, choices)]),
        forward=np.array([choice.forward_seconds for choice in flat], np.float64),
        backward=np.array([choice.backward_seconds for choice in flat], np.float64),
        saved=np.array([choice.saved_bytes for choice in flat], np.int64),
        temporary=np.array([choice.forward_temporary_bytes for choice in flat], np.int64),
        backward_temporary=np.array([choice.backward_temporary_bytes for choice in flat], np.int64),
    )
