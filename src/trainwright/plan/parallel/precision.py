"""Mixed precision: bytes of weights, gradients and optimizer state per parameter, and the profile of a precision.

It is one traced in that precision, else one that is converted, which the plan then says.
"""

from collections.abc import Callable
from dataclasses import dataclass

from trainwright.errors import InputError, closest
from trainwright.model.profile import Profile
from trainwright.plan.parallel.mesh import Floats

__all__ = ["Optimizer", "Precision", "Profiles", "conversion", "optimizer_of", "precision_of", "profile_in"]


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes a parameter or an element of an activation.

    Under mixed precision weights are read as 2 bytes beside a master copy of 4; gradients are collected in 4
    (16 or 18 bytes a parameter with Adam: arXiv 1910.02054, section 3.1, and arXiv 2205.05198, section 6).
    """

    name: str
    element_bytes: int
    weight_bytes: int
    gradient_bytes: int
    master_bytes: int
    state_bytes: int
    """Of one number of optimizer state."""
    flops: str
    """The device's speed that counts."""
    products: str = ""
    """Another for products with the weights of transformer blocks, whose operands are cast to a byte an element."""

    def resident_bytes(self, level: int) -> int:
        """Return bytes a parameter of the weights that are read, at a ZeRO level.

        With divided weights there are none beside a master copy: its shards are cast as they are gathered.
        """
        return 0 if level == 3 and self.master_bytes else self.weight_bytes


Profiles = Profile | Callable[[str], Profile]
"""A profile, or what returns one for a precision, such as `Traces`."""
_TRACED_AS = {"amp-fp8": "amp-bf16"}
"""Products at a byte an element have the operations and activations of those at two."""
_ROWS = (
    ("fp32", 4, 4, 4, 0, 4, "fp32", ""),
    ("amp-fp16", 2, 2, 4, 4, 4, "fp16", ""),
    ("amp-bf16", 2, 2, 4, 4, 4, "bf16", ""),
    ("amp-fp8", 2, 2, 4, 4, 4, "bf16", "fp8"),
    ("bf16", 2, 2, 2, 0, 2, "bf16", ""),
)
PRECISIONS = {row[0]: Precision(*row) for row in _ROWS}


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """Numbers of state a parameter; an update reads gradient, weight and state, and writes the last two."""

    name: str
    numbers: float

    def optimizer_bytes(self, precision: Precision, elements: Floats, trained: Floats) -> Floats:
        """Return bytes of master copies of `elements` weights, and of state of those `trained`."""
        found: Floats = elements * precision.master_bytes + trained * (self.numbers * precision.state_bytes)
        return found

    def moved_bytes(self, precision: Precision) -> float:
        """Return bytes that an update moves a parameter: 12 for plain SGD in fp32, 20 with momentum, 28 for Adam."""
        whole = precision.master_bytes or precision.weight_bytes
        copy = precision.weight_bytes if precision.master_bytes else 0
        return precision.gradient_bytes + 2 * whole + copy + 2 * self.numbers * precision.state_bytes


OPTIMIZERS = {
    name: Optimizer(name=name, numbers=numbers)
    for name, numbers in (("sgd", 0), ("momentum", 1), ("adam", 2), ("adamw", 2))
}


def precision_of(name: str) -> Precision:
    """Return a precision by its name; raises `InputError` for another."""
    if name not in PRECISIONS:
        raise InputError(f"precision: got {name!r}; allowed: {', '.join(PRECISIONS)}{closest(name, PRECISIONS)}")
    return PRECISIONS[name]


def optimizer_of(name: str) -> Optimizer:
    """Return an optimizer by its name, or "bytes_per_parameter=N" for another with N bytes of state in fp32.

    Raises `InputError` for a name that is none of these.
    """
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]
    key, _, number = name.partition("=")
    try:
        size = float(number)
    except ValueError:
        size = -1.0
    if key != "bytes_per_parameter" or not 0 <= size < float("inf"):
        raise InputError(
            f"optimizer: got {name!r}; allowed: {', '.join(OPTIMIZERS)}, bytes_per_parameter=N"
            f"{closest(name, OPTIMIZERS)}"
        )
    return Optimizer(name=name, numbers=size / 4)


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
