"""A request on its way up the tiers of a cascade: rows on which a tier disagrees go on to the next."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from trainwright.ensemble import Ensemble, Uncertainty
from trainwright.ensemble.metrics import Array
from trainwright.errors import DeadlinePassed, NotReady, TrainwrightError
from trainwright.serve.answers import answer_of
from trainwright.serve.batching import Request
from trainwright.serve.cascade import agreement_of
from trainwright.serve.service import Answer

__all__ = ["Climb"]


class Climb:
    """Asks tier after tier for one request; `ask` admits rows for a tier, `future` gets the answer of all."""

    def __init__(
        self,
        *,
        ensemble: Ensemble,
        tiers: tuple[tuple[int, ...], ...],  # positions of members
        agreement: float,
        request: Request,
        ask: Callable[[Request], "Future[Answer]"],
    ) -> None:
        self._ensemble, self._tiers, self._agreement = ensemble, tiers, agreement
        self._request, self._ask = request, ask
        self._found: dict[int, Array] = {}  # position → [N, ...]
        self._missing: dict[int, str] = {}
        self._left = np.arange(request.rows)
        self._stopped = np.zeros(request.rows, dtype=np.int64)
        self._asked: list[tuple[int, ...]] = []  # per tier all members asked so far
        self.future: Future[Answer] = request.future

    def start(self) -> "Future[Answer]":
        """Ask the first tier; raises what `ask` raises."""
        self._next()
        return self.future

    def _next(self) -> None:
        tier = self._tiers[len(self._asked)]
        part = Request(
            x=self._request.x if len(self._left) == self._request.rows else self._request.x[self._left],
            options=replace(self._request.options, members=True, uncertainty=False, trace=False),
            members=tier,
            weights={member: self._request.weights[member] for member in tier},
            admitted=self._request.admitted,
            deadline=self._request.deadline,
        )
        self._ask(part).add_done_callback(lambda done: self._came(tier, done))

    def _came(self, tier: tuple[int, ...], done: "Future[Answer]") -> None:
        """Take a tier's answers, and go on or end; runs in the thread that answers."""
        if self.future.cancelled():
            return
        try:
            self._take(tier, done)
            above = tuple(sorted({*tier, *(self._asked[-1] if self._asked else ())}))
            self._asked.append(above)
            self._stopped[self._left] = len(self._asked) - 1
            if len(self._asked) < len(self._tiers):
                came = [member for member in above if member in self._found]
                share = agreement_of(
                    [self._found[member][self._left] for member in came], [self._request.weights[m] for m in came]
                )
                self._left = self._left[share < self._agreement]
                if len(self._left):
                    self._next()
                    return
            answer = self._answer()
        except TrainwrightError as error:
            if self.future.set_running_or_notify_cancel():
                self.future.set_exception(error)
        else:
            if self.future.set_running_or_notify_cancel():
                self.future.set_result(answer)

    def _take(self, tier: tuple[int, ...], done: "Future[Answer]") -> None:
        trials = {member: self._ensemble.members[member].trial for member in tier}
        try:
            answer = done.result()
        except (DeadlinePassed, NotReady) as error:
            if not self._found:
                raise
            self._missing |= dict.fromkeys(tier, str(error))  # the tiers below have answered
            return
        for member, trial in trials.items():
            if trial in answer.missing:
                self._missing[member] = answer.missing[trial]
                continue
            some = answer.members[trial]
            whole = self._found.setdefault(member, np.full((self._request.rows, *some.shape[1:]), np.nan))
            whole[self._left] = some

    def _answer(self) -> Answer:
        """Combine, for the rows that stopped at each tier, the members asked up to there."""
        parts: list[tuple[Array, Answer]] = []
        for place, asked in enumerate(self._asked):
            rows = np.flatnonzero(self._stopped == place)
            if not len(rows):
                continue
            request = replace(
                self._request,
                x=self._request.x[rows],
                members=asked,
                weights={member: self._request.weights[member] for member in asked},
            )
            found = {member: self._found[member][rows] for member in asked if member in self._found}
            missing = {member: why for member, why in self._missing.items() if member in asked}
            parts.append((rows, answer_of(self._ensemble, request, found, missing, {})))
        first = parts[0][1]
        trial = [member.trial for member in self._ensemble.members]
        kept = self._request.options.members
        return Answer(
            prediction=self._joined([(rows, answer.prediction) for rows, answer in parts]),
            used=tuple(sorted({one for _, answer in parts for one in answer.used})),
            missing={one: why for _, answer in parts for one, why in answer.missing.items()},
            weight=min(answer.weight for _, answer in parts),
            uncertainty=None if first.uncertainty is None else self._unsure(parts),
            members={trial[member]: found for member, found in self._found.items()} if kept else {},
            trace={"stopped": np.bincount(self._stopped).tolist()} if self._request.options.trace else {},
            tiers=self._stopped,
        )

    def _unsure(self, parts: list[tuple[Array, Answer]]) -> Uncertainty:
        found = [(rows, answer.uncertainty) for rows, answer in parts if answer.uncertainty is not None]
        inner = [(rows, one.aleatoric) for rows, one in found if one.aleatoric is not None]
        return Uncertainty(
            measure=found[0][1].measure,
            total=self._joined([(rows, one.total) for rows, one in found]),
            aleatoric=self._joined(inner) if inner else None,
            epistemic=self._joined([(rows, one.epistemic) for rows, one in found]),
        )

    def _joined(self, parts: list[tuple[Array, Array]]) -> Array:
        whole = np.empty((self._request.rows, *parts[0][1].shape[1:]))
        for rows, part in parts:
            whole[rows] = part
        return whole
