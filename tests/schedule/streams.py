"""Random streams of reports, and a rule asked about one report at a time."""

import math

import numpy as np
from hypothesis import strategies as st

from trainwright.schedule import Reported, TrialView, View

__all__ = ["VIEW", "judge", "streams"]

VIEW = View(remaining=0)


@st.composite
def streams(draw, most=200):
    """Draw reports (trial, epoch, loss) of up to `most` trials: epochs rise by 1 to 9, losses tie or are infinite."""
    trials = draw(st.integers(1, most))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = draw(st.integers(1, 60))
    stride = draw(st.integers(1, 9))
    epochs = np.zeros(trials, dtype=int)
    events = []
    for trial in generator.permutation(np.repeat(np.arange(trials), draw(st.integers(1, 6)))).tolist():
        epochs[trial] += generator.integers(1, stride + 1)
        loss = math.inf if generator.random() < 0.03 else float(generator.integers(-values, values)) / 4
        events.append((trial, int(epochs[trial]), loss))
    return events


def judge(rule, index, trial, epoch, loss):
    """Fold one report and return the index and the verdict."""
    index = rule.fold(index, Reported(trial=trial, epoch=epoch, losses=(loss,)))
    return index, rule.on_report(index, VIEW, TrialView(number=trial, epoch=epoch, losses=(loss,), best_loss=loss))
