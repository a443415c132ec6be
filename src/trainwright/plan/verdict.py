"""Verdict: whether a trial's training fits into its devices' memory, before it starts, or what would make it fit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainwright.errors import InputError
from trainwright.plan.byte_sizes import distinct_sizes, size
from trainwright.plan.forecast import Forecast
from trainwright.plan.layout import Degrees
from trainwright.plan.oracle import Oracle
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.precision import Profiles, precision_of, profile_in
from trainwright.plan.parallel.recomputation import choices_of

__all__ = ["MARGIN", "Verdict", "judge", "verdicts"]

MARGIN = 0.03
"""Of the predicted peak, that is kept free at least."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether a trial fits, is repaired by a change that is named, or is rejected; `sentence` says it in bytes."""

    state: Literal["fits", "repaired", "rejected"]
    sentence: str
    wanted_bytes: int
    allowed_bytes: int
    repair: str = ""
    plan: Forecast | None = None

    @property
    def runs(self) -> bool:
        """Whether the trial may start."""
        return self.state != "rejected"


def judge(
    oracle: Oracle,
    profile: Profiles,
    *,
    batch: int,
    devices: int = 1,
    precision: str = "fp32",
    optimizer: str = "adamw",
    max_memory_bytes: float | None = None,
    margin: float = MARGIN,
) -> Verdict:
    """Return the verdict on data-parallel training of `batch` samples an iteration on `devices` devices.

    Repairs are tried in this order: selective recomputation, full, smaller micro-batches with accumulation, dividing
    state over the devices (zero1, zero2, fsdp), and these with recomputation; then more devices are named.
    """
    known = max_memory_bytes or min(oracle.cluster.node_memory_bytes, default=oracle.cluster.device.memory_bytes)
    if not known:
        raise InputError(f"verdict: cluster {oracle.cluster.name!r} has no device.memory_bytes; give max_memory_bytes")
    if batch % devices:
        raise InputError(f"verdict: batch: got {batch} on {devices} devices; allowed: a multiple of {devices}")
    room, profile = int(known), profile_in(profile, precision)

    def estimated(data: int = devices, **choices: Any) -> Forecast:
        return oracle.estimate(
            profile, batch=batch, degrees=Degrees(data=data), precision=precision, optimizer=optimizer, **choices
        )

    def fits(plan: Forecast) -> bool:
        return plan.peak_bytes * (1 + margin) <= room

    # As it is first; then one change after the other, the cheapest for training first.
    first = estimated()
    wanted = first.peak_bytes
    asked, allowed = distinct_sizes(wanted * (1 + margin), room)
    said = f"{asked} are wanted, a margin of {100 * margin:.0f} % included, {allowed} are there"
    said += f" ({first.caveat})" if first.caveat else ""
    if fits(first):
        return Verdict(state="fits", sentence=f"fits: {said}", wanted_bytes=wanted, allowed_bytes=room, plan=first)
    for name, choices in _repairs(ModelArrays(profile, precision_of(precision)), batch // devices, devices):
        plan = estimated(**choices)
        if fits(plan):
            sentence = f"fits after a repair, {name}: {said}; with it {size(plan.peak_bytes * (1 + margin))}"
            return Verdict(
                state="repaired", sentence=sentence, wanted_bytes=wanted, allowed_bytes=room, repair=name, plan=plan
            )
    # Last: how many devices would do with all state divided.
    larger = (more for more in range(devices + 1, min(batch, oracle.cluster.devices) + 1) if batch % more == 0)
    more = next((number for number in larger if fits(estimated(data=number, zero=3))), None)
    help_ = f"; {more} devices would do with fsdp" if more else "; no number of devices that the cluster has would do"
    return Verdict(state="rejected", sentence=f"does not fit: {said}{help_}", wanted_bytes=wanted, allowed_bytes=room)


def verdicts(
    oracle: Oracle, profile_of: Callable[[Mapping[str, Any]], tuple[Profiles, int]], **settings: Any
) -> Callable[[Mapping[str, Any], int], Verdict]:
    """Return `verdict(configuration, devices)` as engines take it.

    `profile_of` gives a configuration's profile (or `Traces`) and batch; `settings` are those of `judge`.
    """

    def verdict(configuration: Mapping[str, Any], devices: int) -> Verdict:
        profile, batch = profile_of(configuration)
        return judge(oracle, profile, batch=batch, devices=devices, **settings)

    return verdict


def _repairs(arrays: ModelArrays, samples: int, devices: int) -> list[tuple[str, dict[str, Any]]]:
    again = [name for name in choices_of(arrays) if name != "none"]
    found: list[tuple[str, dict[str, Any]]] = [(f"{name} recomputation", {"recompute": name}) for name in again]
    micros = [micro for micro in range(samples - 1, 0, -1) if samples % micro == 0]
    found += [(f"micro-batches of {micro}", {"micro": micro}) for micro in micros]
    levels = (("zero1", 1), ("zero2", 2), ("fsdp", 3)) if devices > 1 else ()
    found += [(name, {"zero": level}) for name, level in levels]
    smallest: dict[str, Any] = {"micro": 1}
    title = "micro-batches of 1"
    if "full" in again:
        smallest, title = {"micro": 1, "recompute": "full"}, "micro-batches of 1 and full recomputation"
        found.append((title, smallest))
    return found + [(f"{name}, {title}", {**smallest, "zero": level}) for name, level in levels]
