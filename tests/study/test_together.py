"""Ask and tell from plain loops in several threads and processes: one study, every result in it, nothing twice."""

import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

import trainwright as tw
from trainwright.ledger import Status

SPACE = tw.Space(x=tw.Float(-2, 2), y=tw.Float(-2, 2), kind=tw.Choice("bowl", "ridge"))
LOOPS, EACH = 4, 8


def search(directory):
    """Ask and tell in a loop; every fifth configuration fails."""
    numbers = []
    with tw.Study.open(directory, searcher=tw.RandomSearcher()) as study:
        for i in range(EACH):
            study.refresh()
            configuration = study.ask()
            numbers.append(configuration.number)
            loss = (configuration["x"] - 1) ** 2 + configuration["y"] ** 2
            study.tell(configuration, **({"failed": "no luck"} if i % 5 == 4 else {"loss": loss}))
    return numbers


def in_threads(directory):
    with ThreadPoolExecutor(LOOPS) as pool:
        return list(pool.map(search, [directory] * LOOPS))


def in_processes(directory):
    with ProcessPoolExecutor(LOOPS, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(search, [directory] * LOOPS))


@pytest.mark.parametrize("together", [in_threads, in_processes])
def test_loops_share_a_study(together, tmp_path):
    """Each number is asked once and told once, no configuration comes twice, and all that was told is there."""
    tw.Study(SPACE, objectives="min loss", directory=tmp_path / "study", seed=3).close()
    numbers = together(tmp_path / "study")
    assert sorted(itertools.chain(*numbers)) == list(range(LOOPS * EACH))
    with tw.Study.open(tmp_path / "study") as study:
        assert study.dropped == []
        assert study.state.counts[Status.FAILED] == LOOPS
        assert study.state.counts[Status.COMPLETE] == LOOPS * (EACH - 1)
        assert len({trial.key for trial in study.trials}) == LOOPS * EACH
        for trial in study.trials:
            if trial.status is Status.COMPLETE:
                assert trial.values["loss"] == (trial.params["x"] - 1) ** 2 + trial.params["y"] ** 2


def test_the_next_loop_takes_over_what_a_closed_one_asked(tmp_path):
    """A configuration that was asked and never told is asked again, by one of the others and once."""
    study = tw.Study(SPACE, objectives="min loss", directory=tmp_path / "study", seed=3)
    study.ask(2)
    study.close()
    numbers = in_threads(tmp_path / "study")
    assert sorted(itertools.chain(*numbers)) == list(range(LOOPS * EACH))
