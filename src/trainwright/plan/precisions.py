"""The profile to plan a precision with: one traced in it, else one that is converted, which the plan then says."""

from collections.abc import Callable

from trainwright.model.profile import Profile

__all__ = ["Profiles", "conversion", "profile_in"]

Profiles = Profile | Callable[[str], Profile]
"""A profile, or what returns one for a precision, such as `Traces`."""


_TRACED_AS = {"amp-fp8": "amp-bf16"}
"""Products at a byte an element have the operations and activations of those at two."""


def profile_in(profiles: Profiles, precision: str) -> Profile:
    """Return the profile for a precision."""
    return profiles if isinstance(profiles, Profile) else profiles(_TRACED_AS.get(precision, precision))


def conversion(profile: Profile, precision: str) -> str:
    """Return a sentence on what is rough about a plan in `precision`, "" if the profile is of that precision.

    A described shape has formulas for each precision. The figures are those of docs/explanation/oracle-accuracy.md.
    """
    precision = _TRACED_AS.get(precision, precision)
    if profile.origin == "described" or profile.precision == precision:
        return ""
    return (
        f"the profile is of {profile.precision}, converted to {precision}: for the example models that errs by up to "
        "55 % in activations, 17 % in peaks and 43 % in seconds of computation, mostly too low; trace the model with "
        f'precision="{precision}"'
    )
