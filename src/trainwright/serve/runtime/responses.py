"""Makes responses: combines the predictions of members that answered, with reasons for the missing ones."""

from collections.abc import Mapping

from trainwright.ensemble import Ensemble
from trainwright.ensemble.combine.rules import combine_arrived
from trainwright.ensemble.combine.uncertainty import decompose_uncertainty
from trainwright.ensemble.library.networks import check_outputs
from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError, NotReady, RequestError, ServeError, TrainwrightError
from trainwright.serve.runtime.batching import Request
from trainwright.serve.service import DeploymentSettings, Response

__all__ = ["answer_of", "answer_request", "incomplete_refusal", "make_answer"]


def answer_request(ensemble: Ensemble, request: Request) -> None:
    """Set the result of a finished request's future, unless it was cancelled."""
    if not request.future.set_running_or_notify_cancel():
        return
    if request.refusal is not None:
        request.future.set_exception(request.refusal)
        return
    try:
        answer = answer_of(ensemble, request, request.predictions, request.missing)
    except TrainwrightError as error:
        request.future.set_exception(error)
    except Exception as error:  # noqa: BLE001 - one request's trouble must not end the thread that answers all
        request.future.set_exception(ServeError(f"request: cannot be combined ({type(error).__name__}: {error})"))
    else:
        request.future.set_result(answer)


def incomplete_refusal(
    ensemble: Ensemble, request: Request, missing: Mapping[int, str], settings: DeploymentSettings, *, late: bool
) -> TrainwrightError | None:
    """Say why an answer without the missing members is none; None if it is one."""
    # The share of the weights in the response decides whether it is one.
    weight = _share_of_weights(ensemble, missing)
    count = len(ensemble.members)
    share = f"{count - len(missing)} of {count} members ({weight:.0%} of the weight)"
    if len(missing) == count or weight < settings.quorum:
        needed = f"needed: {settings.quorum:.0%} of the weight"
        if late:
            return request.late_error(f"with {share}; {needed}")
        return NotReady(f"service: has {share}; {needed}; try again", 1.0)
    if settings.strict:
        return NotReady(f"service: has {share}, and is strict: it answers with all or not at all; try again", 1.0)
    return None


def answer_of(
    ensemble: Ensemble, request: Request, predictions: Mapping[int, Array], missing: Mapping[int, str]
) -> Response:
    """Return the answer of a request from its members' predictions, by position in the ensemble.

    With all members it is what `Ensemble.predict` returns. Raises RequestError for rows to which a member has no valid
    answer.
    """
    try:
        # Members combine in their order, so that the sum does not depend on who was first.
        found = {member: check_outputs(one, ensemble.members[member]) for member, one in sorted(predictions.items())}
    except EnsembleError as error:
        raise RequestError(str(error).replace("Ensemble.predict", "request")) from error
    pooled = combine_arrived(ensemble.rule, found, ensemble.weights)
    return make_answer(ensemble, request, pooled, members=found, missing=missing)


def make_answer(
    ensemble: Ensemble,
    request: Request,
    pooled: Array,
    *,
    members: Mapping[int, Array],
    missing: Mapping[int, str],
) -> Response:
    """Return the answer of a request from the combined prediction, before calibration.

    `members` are the predictions in it, by ascending position; they are read only for the options that ask for them.
    """
    prediction = pooled if ensemble.calibration is None else ensemble.calibration.apply(pooled)
    # Users know members by their trials, not by positions in the ensemble.
    trial = [member.trial for member in ensemble.members]
    options = request.options
    # The promise is that of all members: without one of them there is none.
    promise = None
    if options.conformal and ensemble.conformity is not None and not missing:
        promise = ensemble.conformity.apply(pooled)
    # The usual case, in less time.
    if not (missing or options.members or options.uncertainty):
        return Response(prediction=prediction, used=tuple(trial), conformal=promise)
    used = [member for member in range(len(trial)) if member not in missing]
    weights = [ensemble.weights[member] for member in used]
    return Response(
        prediction=prediction,
        used=tuple(trial[member] for member in used),
        missing={trial[member]: why for member, why in missing.items()},
        weight=_share_of_weights(ensemble, missing),
        uncertainty=decompose_uncertainty(members.values(), weights, ensemble.output) if options.uncertainty else None,
        members={trial[member]: one for member, one in members.items()} if options.members else {},
        conformal=promise,
    )


def _share_of_weights(ensemble: Ensemble, missing: Mapping[int, str]) -> float:
    """Return the share of the weights that members have who are not missing."""
    return 1.0 - sum(ensemble.weights[member] for member in missing) / sum(ensemble.weights)
