"""Chains for tests: small random ones of whole numbers, as the oracles need them."""

import numpy as np

from trainwright.memory import Chain, Stage
from trainwright.model.chain import Option

__all__ = ["budgets", "random_chain"]


def random_chain(seed, *, least=3, most=6, options=0, split=False):
    """Draw a chain: times 1-9, outputs 1-6, saved 0-6 more, temporaries 0-2; options, `split` plain forwards."""
    rng = np.random.default_rng(seed)

    def draw(low, high):
        return int(rng.integers(low, high + 1))

    stages = []
    for _ in range(draw(least, most)):
        out, seconds, grown = draw(1, 6), draw(1, 9), draw(0, 4) if split else 0
        stages.append(
            Stage(
                forward_seconds=seconds,
                backward_seconds=draw(1, 9),
                output_bytes=out,
                saved_bytes=out + draw(0, 6),
                forward_temporary_bytes=draw(0, 2),
                backward_temporary_bytes=draw(-grown, 2),
                gradient_bytes=draw(0, out) if split else None,
                no_grad_forward_seconds=draw(1, seconds) if split else None,
                no_grad_forward_temporary_bytes=draw(0, 2) if split else None,
                parameter_gradient_bytes=grown,
                options=tuple(
                    Option(forward_seconds=draw(1, 9), backward_seconds=draw(2, 14), saved_bytes=out + draw(0, 3))
                    for _ in range(options)
                ),
            )
        )
    return Chain(stages=tuple(stages), input_bytes=draw(1, 6))


def budgets(chain, least, count):
    """Budgets from the least to where everything fits."""
    full = chain.fixed_bytes + sum(step.saved_bytes for step in chain.steps) + 12
    return sorted({int(each) for each in np.linspace(least, full, count)})
