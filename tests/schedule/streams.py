"""Random streams of reports, and a rule asked about one report at a time."""

import math

import numpy as np
from hypothesis import strategies as st

from trainwright.schedule import Reported, RuleView, TrialView
from trainwright.schedule.rules.promotion_rule import Started
from trainwright.testing.rule import play

__all__ = ["VIEW", "judge", "played", "streams", "views"]

VIEW = RuleView(remaining=0)


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
    return index, rule.on_report(index, VIEW, TrialView(number=trial, epoch=epoch, losses=(loss,)))


@st.composite
def played(draw, rule, most=60, objectives=1):
    """Draw a study of up to `most` trials without training under `rule`, some with failures and lost trials."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = generator.integers(-draw(st.integers(1, 60)), 60, size=(512, 128)) / 4
    values[generator.random(values.shape) < 0.03] = math.inf
    sizes = {
        "trials": draw(st.integers(1, most)),
        "workers": draw(st.integers(1, 8)),
        "stride": draw(st.integers(1, 4)),
    }
    trouble = draw(st.sampled_from([0.0, 0.05, 0.2]))
    seed = draw(st.integers(0, 2**31))
    loss = values.item  # of a trial and an epoch
    return play(rule, loss, seed=seed, trouble=trouble, objectives=objectives, **sizes), sizes["trials"]


def views(events, trials):
    """Yield each event with the study as a rule may see it afterwards."""
    started = set()
    for event in events:
        if isinstance(event, Started):
            started.add(event.trial)
        yield event, RuleView(remaining=trials - len(started))
