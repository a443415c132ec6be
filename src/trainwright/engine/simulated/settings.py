"""The settings of simulations: how trials scale, when a study ends, and the cluster that exists only in time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from trainwright.cluster import Cluster
from trainwright.engine.simulated.task import Parametric, Task
from trainwright.errors import EngineError
from trainwright.schedule import DeviceAllocator
from trainwright.schedule.allocator.estimates import Estimates, adascale_gain, interpolate_speedup
from trainwright.settings import Settings
from trainwright.validators import Validator, flag, integer, number, optional

__all__ = ["GoodputScaling", "Scaling", "Simulated", "SimulationLimits"]

_FUNCTION = Validator(callable, "a function")
_NOT_NEGATIVE = number(minimum=0)
_CURVE = Validator(
    lambda value: isinstance(value, Mapping) and all(map(number(above=0).accepts, (*value, *value.values()))),
    "factors and speed-ups > 0, such as {1: 1.0, 2: 1.8, 4: 3.1}",
)
_NEVER = optional(number(above=0), words="None for never")
_TIME = optional(number(above=0), words="None for no limit")


@dataclass(frozen=True, kw_only=True)
class Scaling(Settings, error=EngineError):
    """`m` times the devices are `m**alpha` times as fast, or as `curve` says (factor of devices -> speed-up).

    Between the points of a curve it is interpolated on logarithms; outside it goes on with its last slope.
    """

    alpha: Annotated[float, number(above=0, maximum=1.2), "exponent of the number of devices"] = 0.9
    curve: Annotated[Mapping[float, float], _CURVE, "measured speed-ups"] = field(default_factory=dict)

    def speedup(self, factor: float) -> float:
        """Return how many times as fast a trial is on `factor` times its devices."""
        return interpolate_speedup(self.curve, factor, self.alpha)

    def choose_batch(self, estimates: Estimates, devices: int, epoch: int) -> int:  # noqa: ARG002 -- as goodput has it
        """Return 0: nothing is said of batches."""
        return 0

    def pace(self, devices: int, batch: int, epoch: int, task_devices: int) -> float:  # noqa: ARG002 -- likewise
        """Return how many times as fast a trial is as on the task's devices."""
        return self.speedup(devices / task_devices)

    def measure(self, allocator: DeviceAllocator, trial: int, batch: int, epoch: int) -> None:
        """Trials measure nothing but their epochs."""


@dataclass(frozen=True, kw_only=True)
class GoodputScaling(Settings, error=EngineError):
    """Trials measure steps and gradient noise, and are as fast as their goodput, in epochs of equal progress.

    `step_seconds(devices, batch)` are those of a step, `noise(epoch)` is the gradient noise scale after so many epochs.
    A trial chooses its batch before each epoch, as `prepare(..., batch="goodput")` does, from `reference` to `largest`
    and by what the study has measured so far; unless it `chooses`, the batch is the reference. A device takes at most
    `micro_batch` samples at a time.
    """

    step_seconds: Annotated[Callable[[int, int], float], _FUNCTION]
    noise: Annotated[Callable[[int], float], _FUNCTION]
    reference: Annotated[int, integer(minimum=1)]
    largest: Annotated[int, integer(minimum=1)] = 2**30
    micro_batch: Annotated[int, integer(minimum=1)] = 2**30
    chooses: Annotated[bool, flag()] = True

    def choose_batch(self, estimates: Estimates, devices: int, epoch: int) -> int:
        """Return the batch of a trial's next epoch, by what the study knows; of a new trial no noise is known."""
        known = estimates.goodputs
        return known[0].choose_batch(devices, self.noise(epoch)) if self.chooses and known and epoch else self.reference

    def pace(self, devices: int, batch: int, epoch: int, task_devices: int) -> float:
        """Return how many times as fast a trial is as with the reference batch on the task's devices."""
        seconds = self.step_seconds(task_devices, self.reference) / self.step_seconds(devices, batch)
        return float(adascale_gain(self.noise(epoch), batch, self.reference) * seconds)

    def measure(self, allocator: DeviceAllocator, trial: int, batch: int, epoch: int) -> None:
        """Let the study know what a trial has measured, as it says with each report."""
        if self.chooses:
            devices = len(allocator.running[trial].block)
            settings = {"reference": self.reference, "limit": self.micro_batch, "largest": self.largest}
            shape = allocator.estimates.goodput_of(*settings.values()).shape(devices, batch)
            measured = {"shape": shape, "step_seconds": self.step_seconds(devices, batch), "noise": self.noise(epoch)}
            allocator.note_goodput(trial, measured | settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationLimits(Settings, error=EngineError, label="simulate"):
    """A budget of trials, of seconds of the clock, of seconds of all devices together; None is no limit.

    `deadline_seconds` are seconds of the clock, too, but what is complete then is all that counts.
    """

    trials: Annotated[int | None, optional(integer(minimum=1)), "trials that are started"] = None
    wall_seconds: Annotated[float | None, _TIME, "seconds of the clock"] = None
    device_seconds: Annotated[float | None, _TIME, "seconds of all devices together"] = None
    deadline_seconds: Annotated[float | None, _TIME, "seconds to the deadline"] = None

    def check_together(self) -> None:
        """Refuse a study that nothing ends."""
        if self.trials is None and self.timeless:
            raise EngineError(
                "simulate: nothing ends the study; give trials, deadline_seconds, wall_seconds or device_seconds"
            )

    @property
    def timeless(self) -> bool:
        """Whether there is no budget of time."""
        return self.wall_seconds is None and self.device_seconds is None and self.deadline_seconds is None

    @property
    def clock_seconds(self) -> float | None:
        """After how many seconds of the clock all ends, None if it does not."""
        return min((end for end in (self.wall_seconds, self.deadline_seconds) if end is not None), default=None)

    def remaining(self, started: int) -> int:
        """Return how many trials more may be started."""
        return 2**62 if self.trials is None else self.trials - started


@dataclass(frozen=True, kw_only=True)
class Simulated(Settings, error=EngineError):
    """What `study.simulate` simulates: trials of `task` on `cluster`.

    The seconds of the task are those on `task_devices` devices (None: on those of a new trial, the fewest of all
    schedulers that are compared); on others `scaling` says how fast a trial is. A new trial trains after
    `start_seconds`, and `process_seconds` later on devices that nobody has used yet, where a process starts and imports
    its packages; going on elsewhere costs `restart_seconds`, on another number of devices `resize_seconds` more.
    `stragglers` s makes each run of a trial 1 + |z| times as long, z normal with spread s; `drops_per_second` is the
    rate at which it fails. Nodes fail after `node_mtbf_seconds` on average (None: never) and are back `repair_seconds`
    later; what ran there goes on from its last epoch, with the devices of a new trial. Unless trials `resume`, whoever
    goes on trains again from the first epoch. Every draw is a function of the seed, the trial and its run.
    """

    cluster: Cluster
    task: Task = field(default_factory=Parametric)
    task_devices: Annotated[int | None, optional(integer(minimum=1)), "devices of the task's seconds"] = None
    scaling: Scaling | GoodputScaling = field(default_factory=Scaling)
    start_seconds: Annotated[float, _NOT_NEGATIVE, "until a new trial trains"] = 0.0
    restart_seconds: Annotated[float, _NOT_NEGATIVE, "to continue elsewhere"] = 30.0
    resize_seconds: Annotated[float, _NOT_NEGATIVE, "more, on another number of devices"] = 0.0
    process_seconds: Annotated[float, _NOT_NEGATIVE, "until a process of a new device is there"] = 0.0
    resume: Annotated[bool, flag(), "continue from the last epoch"] = True
    stragglers: Annotated[float, _NOT_NEGATIVE, "spread of how much longer a run takes"] = 0.0
    drops_per_second: Annotated[float, _NOT_NEGATIVE, "rate at which a run fails"] = 0.0
    node_mtbf_seconds: Annotated[float | None, _NEVER, "mean time between failures of a node"] = None
    repair_seconds: Annotated[float, _NOT_NEGATIVE, "until a failed node is back"] = 3600.0
