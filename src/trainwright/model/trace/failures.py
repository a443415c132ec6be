"""Errors of a run through a model, in one sentence: which operation, in which module, on which shapes."""

from trainwright.errors import ProfileError
from trainwright.model.trace.corrections import depends_on_values
from trainwright.model.trace.recorder import StepRecorder

__all__ = ["Untraceable", "explain_error"]


class Untraceable(ProfileError):
    """A step that depends on values, or on an operation that fake tensors do not know: it has to be run."""


def explain_error(error: Exception, recorder: StepRecorder, *, fake: bool) -> ProfileError:
    """Return the error to raise for one that a model's step raised under a recorder."""
    if isinstance(error, ProfileError):
        return error
    failure = recorder.failure if recorder.failure is not None and recorder.failure.error is error else None
    module = f"module {recorder.path!r}" if recorder.path else "the model itself"
    what = f"{failure.operation} in {module}" if failure is not None else module
    said = " ".join(str(error).split()) or type(error).__name__
    # Such a step can still be run on real tensors.
    if fake and _needs_values(error):
        return Untraceable(
            f"model: {what} depends on the values of tensors or is unknown without them, so the model cannot be traced"
        )
    shapes = ", ".join(str(shape) for shape in failure.shapes) if failure is not None else ""
    on = f" on shapes {shapes}" if shapes else ""
    return ProfileError(
        f"sample: {what} fails{on}: {_shorten_text(said)}; allowed: what the model's forward takes (a tensor, a tuple "
        "of arguments or a mapping of keywords), with the batch as first dimension"
    )


def _needs_values(error: Exception) -> bool:
    return (
        depends_on_values(error)
        or isinstance(error, NotImplementedError)
        or any(word in str(error) for word in ("FakeTensor", "tensor subclasses", "Meta tensors", "meta tensor"))
    )


def _shorten_text(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
