"""A model's profile in every precision that is asked for, each traced once."""

from typing import TYPE_CHECKING, Any

from trainwright.model.profile import Profile

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Traces"]


class Traces:
    """What `Profile.trace` says of a model and a sample in each precision: called with one, it returns the profile.

    The oracle takes it for a profile, and so plans with what autocast does to this model. `settings` are those of
    `Profile.trace` but for the precision. The model and the sample are to stay as they are.
    """

    def __init__(self, model: "nn.Module", sample: Any, **settings: Any) -> None:
        self._model, self._sample, self._settings = model, sample, settings
        self._known: dict[str, Profile] = {}

    def __call__(self, precision: str) -> Profile:
        """Return the profile in a precision. Raises `ProfileError` as `Profile.trace` does."""
        if precision not in self._known:
            self._known[precision] = Profile.trace(self._model, self._sample, precision=precision, **self._settings)
        return self._known[precision]
