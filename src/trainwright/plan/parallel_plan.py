"""ParallelPlan: a strategy with its degrees, and what it is predicted to cost."""

import math
from dataclasses import dataclass, field, fields
from pathlib import Path

from trainwright.plan.collective import Collective

__all__ = ["Bottleneck", "Breakdown", "Degrees", "ParallelPlan", "Rejection"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    """Into how many parts each thing is divided; the product is the number of devices.

    `data` counts the replicas and shards of FSDP together; `ParallelPlan.shard` says over how many of them state is
    divided. Ranks are laid out with the first field changing fastest, so that it stays inside a node.
    """

    tensor: int = 1
    context: int = 1
    filter: int = 1
    channel: int = 1
    spatial: int = 1
    expert: int = 1
    data: int = 1
    pipeline: int = 1

    @property
    def devices(self) -> int:
        """All devices."""
        return math.prod(getattr(self, degree.name) for degree in fields(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """Seconds of an iteration by what they go to; they add up to the total."""

    compute: float = 0.0
    communication: float = 0.0
    """Exposed: not hidden behind computation."""
    bubble: float = 0.0
    input: float = 0.0
    """Exposed."""
    update: float = 0.0
    """Of the weights, and adding up the gradients of micro-batches."""
    checkpoint: float = 0.0
    framework: float = 0.0
    """What takes time beyond layers and exchanges, as it was measured."""

    @property
    def total(self) -> float:
        """Seconds of an iteration."""
        return math.fsum(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Bottleneck:
    """What limits a plan, in one sentence with the two numbers that prove it, and what to try."""

    id: str
    sentence: str
    share: float
    advice: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """A strategy that cannot be used, and why."""

    strategy: str
    reason: str
    value: str
    allowed: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelPlan:
    """A strategy for a model on a cluster with its predicted time and memory per device."""

    strategy: str
    degrees: Degrees
    batch: int
    """Samples of an iteration over all devices."""
    micro_batch: int
    """Samples that one device (or one pipeline) works on at a time."""
    microbatches: int = 1
    """Micro-batches of an iteration: pipeline slots, or steps of accumulation."""
    zero: int = 0
    """0: state replicated; 1: optimizer state divided; 2: gradients too; 3: weights too (FSDP)."""
    shard: int = 1
    """Devices over which `zero` divides: all of degrees.data, fewer if hybrid, or those of degrees.context too."""
    sequence: bool = False
    """Whether the tensor-parallel ranks divide the sequence outside attention and feed-forward."""
    recompute: str = "none"
    """"none"; "selective": attention is run again in the backward pass; "full": whole blocks;
    "operators": all of them but attention and every second product."""
    recomputed: tuple[str, ...] = ()
    """Paths of the modules that a full recomputation runs again; (): those of the model's lists of blocks."""
    schedule: str = ""
    """Of a pipeline: "gpipe", "1f1b" or "interleaved"."""
    chunks: int = 1
    """Model chunks of a pipeline stage (interleaved)."""
    stages: tuple[int, ...] = ()
    """Blocks of each pipeline stage, in order, repeated blocks counted as often as they run."""
    cuts: tuple[str, ...] = ()
    """Paths of the modules that these stages but the first begin with; () where the profile does not say them."""
    precision: str = "fp32"
    optimizer: str = "adamw"
    breakdown: Breakdown = field(default_factory=Breakdown)
    interval: tuple[float, float] = (0.0, 0.0)
    """Low and high end of seconds_per_iteration, 5 to 95 %."""
    tie: bool = False
    """Whether more than half of the interval is shared with that of the best plan."""
    peak_bytes: int = 0
    """Allocated, per device."""
    reserved_bytes: int = 0
    state_bytes: int = 0
    """Weights, gradients and optimizer state: part of the peak."""
    activation_bytes: int = 0
    """What micro-batches in flight keep for their backward passes, on the stage that keeps most of them."""
    most_devices: int = 0
    """How many devices this strategy can use at most."""
    inflation: float = 1.0
    """How many times as long as its iterations a job takes, with what failures lose."""
    rough: str = ""
    """Why the figures may err by more than the interval says, in a sentence; "" if nothing is known."""
    collectives: tuple[Collective, ...] = ()
    bottlenecks: tuple[Bottleneck, ...] = ()

    @property
    def devices(self) -> int:
        """Devices that the plan uses."""
        return self.degrees.devices

    @property
    def seconds_per_iteration(self) -> float:
        """Predicted seconds of an iteration."""
        return self.breakdown.total

    def device_hours(self, samples: int) -> float:
        """Return the device-hours of so many samples, those of an epoch for instance."""
        return math.ceil(samples / self.batch) * self.seconds_per_iteration * self.devices / 3600

    def seconds_to_solution(self, samples: int) -> float:
        """Return the seconds until so many samples have been trained on, with checkpoints and failures."""
        seconds = self.seconds_per_iteration - self.breakdown.checkpoint
        return math.ceil(samples / self.batch) * seconds * self.inflation

    def save(self, path: str | Path) -> None:
        """Write the plan to a JSON file, from which `load` makes it again."""
        from trainwright.plan import plan_file

        plan_file.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> "ParallelPlan":
        """Return the plan of a file that `save` or `trainwright plan --out` wrote. Raises `InputError` for others."""
        from trainwright.plan import plan_file

        return plan_file.load(path)
