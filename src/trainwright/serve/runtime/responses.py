"""Responses from predictions: the ensemble's rule over the members that answered, and the reasons for the others."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainwright.ensemble import Ensemble
from trainwright.ensemble.combine.rules import combine_arrived
from trainwright.ensemble.combine.uncertainty import decompose_uncertainty
from trainwright.ensemble.library.networks import check_outputs
from trainwright.ensemble.metrics import Array
from trainwright.errors import (
    DeadlinePassed,
    EnsembleError,
    NotReady,
    Overloaded,
    RequestError,
    ServeError,
    TrainwrightError,
)
from trainwright.serve.runtime.batching import Request
from trainwright.serve.runtime.settings import DeploymentSettings
from trainwright.serve.service import Response

__all__ = [
    "ENDED",
    "FinishedRequest",
    "answer_of",
    "answer_request",
    "incomplete_refusal",
    "make_answer",
    "overload_refusal",
]


ENDED = "service: has ended; nothing is answered any more"


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedRequest:
    """A request for which all has come that counts."""

    request: Request
    predictions: Mapping[int, Array]  # per member; they may lie in shared memory
    missing: Mapping[int, str]
    refusal: TrainwrightError | None  # what is said instead of an answer


def answer_request(ensemble: Ensemble, finished: FinishedRequest) -> None:
    """Set the result of a finished request's future, unless it was cancelled."""
    request = finished.request
    if not request.future.set_running_or_notify_cancel():
        return
    if finished.refusal is not None:
        request.future.set_exception(finished.refusal)
        return
    trace = {}
    if request.options.trace:
        trial = [member.trial for member in ensemble.members]
        trace = {
            "queue_ms": 1e3 * (request.begun - request.admitted),
            "predict_ms": {trial[member]: 1e3 * one for member, one in request.seconds.items()},
            "total_ms": 1e3 * (time.monotonic() - request.admitted),
        }
    try:
        answer = answer_of(ensemble, request, finished.predictions, finished.missing, trace)
    except TrainwrightError as error:
        request.future.set_exception(error)
    except Exception as error:  # noqa: BLE001 - one request's trouble must not end the thread that answers all
        request.future.set_exception(ServeError(f"request: cannot be combined ({type(error).__name__}: {error})"))
    else:
        request.future.set_result(answer)


def overload_refusal(waiting: int, rows: int, limit: int, rate: float) -> Overloaded:
    """Return the refusal of rows for which the queue has no place, with the seconds after which it may have one."""
    return Overloaded(
        f"service: {waiting} rows wait and {rows} more were given; allowed: {limit}; try again",
        min(30.0, max(0.1, waiting / rate)),
    )


def incomplete_refusal(
    request: Request, missing: Mapping[int, str], settings: DeploymentSettings, *, late: bool
) -> TrainwrightError | None:
    """Say why an answer without the missing members is none; None if it is one."""
    # What share of the asked weight is in the response decides whether it is one.
    total = sum(request.weights.values())
    weight = 1.0 - sum(request.weights[member] for member in missing) / total
    share = f"{len(request.members) - len(missing)} of {len(request.members)} members ({weight:.0%} of the weight)"
    enough = len(missing) < len(request.members) and weight >= settings.quorum
    if late and not enough:
        waited = (request.deadline - request.admitted) * 1e3
        return DeadlinePassed(
            f"deadline: {waited:.3g} ms passed with {share}; needed: {settings.quorum:.0%} of the weight"
        )
    if not enough:
        return NotReady(f"service: has {share}; needed: {settings.quorum:.0%} of the weight; try again", 1.0)
    if settings.strict:
        return NotReady(f"service: has {share}, and is strict: it answers with all or not at all; try again", 1.0)
    return None


def answer_of(
    ensemble: Ensemble,
    request: Request,
    predictions: Mapping[int, Array],
    missing: Mapping[int, str],
    trace: Mapping[str, Any],
) -> Response:
    """Return the answer of a request from its members' predictions, by position in the ensemble; they are copied.

    With all members asked for it is what `Ensemble.predict` returns. Raises RequestError for rows to which a member
    has no valid answer.
    """
    try:
        found = {
            member: check_outputs(one.copy(), ensemble.members[member]) for member, one in sorted(predictions.items())
        }
    except EnsembleError as error:
        raise RequestError(str(error).replace("Ensemble.predict", "request")) from error
    # Members combine in their order, so that the sum does not depend on who was first.
    weights = [request.weights.get(member, 0.0) for member in range(len(ensemble.members))]
    combined, _ = combine_arrived(ensemble.rule, found, weights)
    prediction = combined if ensemble.calibration is None else ensemble.calibration.apply(combined)
    return make_answer(ensemble, request, prediction, members=found, missing=missing, trace=trace)


def make_answer(
    ensemble: Ensemble,
    request: Request,
    prediction: Array,
    *,
    members: Mapping[int, Array],
    missing: Mapping[int, str],
    trace: Mapping[str, Any],
) -> Response:
    """Return the answer of a request from the combined prediction.

    `members` are the predictions in it, by ascending position; they are read only for the options that ask for them.
    """
    # Users know members by their trials, not by positions in the ensemble.
    trial = [member.trial for member in ensemble.members]
    options = request.options
    # The usual case, in less time.
    if not (missing or trace or options.members or options.uncertainty):
        return Response(prediction=prediction, used=tuple([trial[member] for member in request.members]))
    used = [member for member in request.members if member not in missing]
    weights = [request.weights[member] for member in used]
    return Response(
        prediction=prediction,
        used=tuple(trial[member] for member in used),
        missing={trial[member]: why for member, why in missing.items()},
        weight=sum(weights) / sum(request.weights[member] for member in request.members) if missing else 1.0,
        uncertainty=decompose_uncertainty(members.values(), weights, ensemble.output) if options.uncertainty else None,
        members={trial[member]: one for member, one in members.items()} if options.members else {},
        trace=trace,
    )
