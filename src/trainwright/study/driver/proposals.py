"""New trials: a claimed number, and what the searcher proposes for it."""

from collections.abc import Callable

from trainwright.errors import SpaceExhausted
from trainwright.search import ExpectedGain, Learner, Searcher
from trainwright.search import View as SearchView
from trainwright.space import Configuration
from trainwright.study.study_log import StudyLog

__all__ = ["Proposals"]


class Proposals:
    """Makes proposals with one searcher; `worker` is whether this process is one of a team.

    A proposal is made when it is needed and not while another trial runs: by then about as many results as there are
    workers would have come, and it would be made again.
    """

    def __init__(
        self,
        log: StudyLog,
        view: SearchView,
        searcher: Searcher,
        *,
        worker: bool,
        say: Callable[[str], None],
        stop_when: ExpectedGain | None = None,
    ) -> None:
        self.exhausted = False  # nothing new will be proposed any more
        self._stop_when = stop_when
        self._asked = 0  # the last step at which the rule to stop was asked
        self._log = log
        self._view = view
        self._searcher = searcher
        self._worker = worker
        self._say = say

    def prepare(self) -> None:
        """Let the searcher learn what has come, as long as there is time for it."""
        if isinstance(self._searcher, Learner):
            self._searcher.learn(self._view)

    def next(self, limit: int | None) -> tuple[int, Configuration] | None:
        """Return a new trial's number, now ours, and its configuration; None if budget or space allow none."""
        if self._stopped():
            return None
        claims = self._log.claims
        number = claims.number(limit, team=self._worker)
        if number is None:
            return None
        try:
            (configuration,) = self._searcher.ask(self._view, [number])
        except SpaceExhausted as end:
            claims.release([number])
            self.exhausted = True
            self._say(f"every configuration of the space has been tried: {end}")
            return None
        except BaseException:  # Ctrl-C, too: a number that is kept for nothing is missing in the end
            claims.release([number])
            raise
        return number, configuration

    def _stopped(self) -> bool:
        if self._stop_when is None or (step := self._stop_when.step(self._view)) == self._asked:
            return self.exhausted
        self._asked = step
        gain = self._stop_when.gain(self._view)
        if gain < self._stop_when.least:
            self.exhausted = True
            self._say(
                f"another trial would gain about {gain:.2g}, less than {self._stop_when.least:g}: the search ends"
            )
        return self.exhausted
