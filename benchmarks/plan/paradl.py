"""ParaDL: the formulas of an earlier oracle as it coded them, kept as the baseline that ours is measured against.

Kahira et al., "An Oracle for Guiding Large-Scale Model/Hybrid Parallel Training of Convolutional Neural Networks"
(HPDC 2021, arXiv 2104.09075), and the script of its technical report (GitHub `TruongThaoNguyen/paraDL-analysis`). Its
machine is the one typed into that script (ABCI); `Variant` holds what differed between the runs that it published.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from trainwright.errors import InputError
from trainwright.model.layer import Layer

__all__ = ["ParaDL", "Projection", "Variant"]

_ELEMENT = 4  # bytes; everything is single precision
_NODE = 4  # devices
_NVLINK, _PLX, _INFINIBAND = 50e9, 16e9, 12.5e9  # bytes a second
_NVLINK_ALPHA, _PLX_ALPHA, _LEAF_ALPHA, _SPINE_ALPHA = 9e-6, 110e-9, 90e-9, 400e-9  # seconds
_STAGED_ALPHA = 3e-3  # of a message between devices of a node without GPUDirect, as ParaDL measured it
_NOT_KEPT = ("pointwise", "norm")  # kinds whose input and output count as no memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """What ParaDL's script had in one of its states; the defaults are the last."""

    cable_seconds: float = 20e-6
    """Latency of a PCIe cable, part of alpha between nodes: 40.31e-6 s below 69 devices, or 30.31e-6 for 15e-6."""
    contention: float = 8.0
    """By how much beta between nodes is multiplied in hybrids (2 * p2 in the last state, p2 or 2 earlier)."""
    divided_gradients: bool = False
    """Whether data+filter reduces only each device's part of the divided weights between nodes."""
    gather_contention: float = 2.0
    """By how much beta of the gather at the end of the divided layers is multiplied (data+spatial)."""
    staged: bool = True
    """Whether layer exchanges of data+spatial go through host memory; if not, halos are those of `spatial`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """An epoch as ParaDL prints it: seconds of compute and of communication, and bytes a device."""

    compute_seconds: float
    communication_seconds: float
    memory_bytes: float

    @property
    def seconds(self) -> float:
        """Seconds of an epoch."""
        return self.compute_seconds + self.communication_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class ParaDL:
    """ParaDL's projections for one model and data set of `samples` samples.

    `seconds_per_sample`, one measured total, is spread over the layers by their operations (`forward_flops` +
    `backward_flops`). `divided` are the positions of the layers that a filter, channel or spatial strategy divides.
    """

    layers: tuple[Layer, ...]
    seconds_per_sample: float
    samples: int
    divided: frozenset[int] = frozenset()
    variant: Variant = field(default_factory=Variant)

    def serial(self, batch: int) -> Projection:
        """One device."""
        return Projection(
            compute_seconds=self.samples * self.seconds_per_sample,
            communication_seconds=0.0,
            memory_bytes=self._memory(batch * self._activations(), self._weights()),
        )

    def data(self, devices: int, batch: int) -> Projection:
        """Every device has a copy of the model and `batch` / `devices` samples."""
        alpha, beta = _between(devices, self.variant)
        weights = self._weights()
        return Projection(
            compute_seconds=math.ceil(self.samples / devices) * self.seconds_per_sample,
            communication_seconds=2 * self._iterations(batch) * _ring(devices, weights, alpha, beta),
            memory_bytes=self._memory(batch / devices * self._activations(), weights),
        )

    def channel(self, devices: int, batch: int) -> Projection:
        """Every device has a part of the channels of the divided layers and all samples; `filter` costs the same.

        The divided weights are divided twice in `memory_bytes`, as in ParaDL.
        """
        exchange = self._filter_exchange(devices, batch, *_between(devices, self.variant))
        weights = self._weights(devices) / devices
        return Projection(
            compute_seconds=self._iterations(batch) * batch * self._seconds(devices),
            communication_seconds=self._iterations(batch) * exchange,
            memory_bytes=self._memory(batch * self._activations(), weights),
        )

    filter = channel

    def spatial(self, devices: int, batch: int) -> Projection:
        """Every device has a strip of every sample, through the divided layers; halos of one sample, one channel."""
        alpha, beta = _inside()
        gathered = self.layers[max(self.divided)].output_elements * batch
        exchange = (
            _row_halos([self.layers[i] for i in self.divided], alpha, beta)
            + 2 * _ring(devices, gathered, alpha, beta)
            + 2 * _ring(devices, self._weights(), alpha, beta)
        )
        kept = sum(self._kept(i, devices) for i in range(len(self.layers)))
        return Projection(
            compute_seconds=self.samples * self._seconds(devices),
            communication_seconds=self._iterations(batch) * exchange,
            memory_bytes=self._memory(batch * kept, self._weights()),
        )

    def data_filter(self, devices: int, batch: int, *, group: int = _NODE) -> Projection:
        """Let groups of `group` devices divide filters; the groups divide the samples."""
        groups = self._groups(devices, group)
        samples = batch / groups
        alpha, beta = _between(devices, self.variant)
        weights = self._weights(group)
        reduced = weights if self.variant.divided_gradients else self._weights()
        exchange = self._filter_exchange(group, samples, *_inside())
        exchange += 2 * _ring(groups, reduced, alpha, beta * self.variant.contention)
        return Projection(
            compute_seconds=self._iterations(batch) * samples * self._seconds(group),
            communication_seconds=self._iterations(batch) * exchange,
            memory_bytes=self._memory(samples * self._activations(), weights),
        )

    def data_spatial(self, devices: int, batch: int, *, group: int = _NODE) -> Projection:
        """Let groups of `group` devices divide samples up to the last divided layer; the groups divide the batch.

        Layers after the last divided one count neither time nor memory, as in ParaDL.
        """
        groups = self._groups(devices, group)
        samples = batch / groups
        last = max(self.divided)
        before = self.layers[: last + 1]
        gathered = samples * before[last].output_elements
        if self.variant.staged:
            alpha, beta = _STAGED_ALPHA + _PLX_ALPHA, 1 / _PLX
            halos = _face_halos([self.layers[i] for i in self.divided], samples, alpha, beta * 2 * _NODE)
            halos += 2 * _ring(group, gathered, alpha, beta * self.variant.gather_contention)
        else:
            halos = _row_halos(before, *_inside()) + 2 * _ring(group, gathered, *_inside())
        weights = self._weights()
        alpha, beta = _between(devices, self.variant)
        gradients = 2 * _ring(group, weights, *_inside())
        gradients += 2 * _ring(groups, weights, alpha, beta * self.variant.contention)
        kept = sum(self._kept(i, group) for i in range(last + 1))
        return Projection(
            compute_seconds=math.ceil(self.samples / groups) * self._seconds(group, last + 1),
            communication_seconds=self._iterations(batch) * (halos + gradients),
            memory_bytes=self._memory(samples * kept, weights),
        )

    def _groups(self, devices: int, group: int) -> int:
        if devices % group:
            raise InputError(
                f"ParaDL: got {devices} devices in groups of {group}; allowed: a multiple of {group} devices"
            )
        return devices // group

    def _iterations(self, batch: int) -> int:
        return math.ceil(self.samples / batch)

    def _weights(self, parts: int = 1) -> float:
        """Weights of a device if those of the divided layers are cut into `parts`."""
        return sum(each.weight_elements / (parts if i in self.divided else 1) for i, each in enumerate(self.layers))

    def _seconds(self, parts: int, end: int | None = None) -> float:
        """Seconds of a sample on one of `parts` devices, over the layers before `end`."""
        work = [each.forward_flops + each.backward_flops for each in self.layers]
        mine = sum(flops / (parts if i in self.divided else 1) for i, flops in enumerate(work[:end]))
        return self.seconds_per_sample * mine / sum(work)

    def _activations(self) -> int:
        return sum(each.input_elements + each.output_elements for each in self.layers if each.kind not in _NOT_KEPT)

    def _kept(self, i: int, parts: int) -> float:
        """Elements of a sample in and out of layer i on one of `parts` devices; every kind counts here."""
        layer = self.layers[i]
        if i in self.divided:
            return math.ceil(layer.input_elements / parts) + math.ceil(layer.output_elements / parts)
        return layer.input_elements + layer.output_elements

    def _filter_exchange(self, devices: int, samples: float, alpha: float, beta: float) -> float:
        """Seconds of an all-gather forward and an all-reduce backward of every divided layer but the model's last."""
        passing = [self.layers[i] for i in self.divided if i != len(self.layers) - 1]
        elements = samples * sum(each.output_elements for each in passing)
        return 3 * (devices - 1) * (alpha * len(passing) + elements * _ELEMENT * beta / devices)

    @staticmethod
    def _memory(activations: float, weights: float) -> float:
        return 2 * _ELEMENT * (activations + weights)


def _ring(devices: int, elements: float, alpha: float, beta: float) -> float:
    """Seconds of one pass around a ring: an all-gather, or half of an all-reduce."""
    return (devices - 1) * (alpha + elements * _ELEMENT * beta / devices)


def _face_halos(layers: Iterable[Layer], samples: float, alpha: float, beta: float) -> float:
    """Seconds to exchange the border faces of every layer with a kernel above 1, twice forward and twice backward."""
    total = 0.0
    for layer in layers:
        if layer.kernel and layer.kernel[0] > 1:
            face = layer.channels * ((layer.kernel[0] - 1) // 2) * math.prod(layer.input_size[1:])
            total += 4 * (alpha + samples * face * _ELEMENT * beta)
    return total


def _row_halos(layers: Iterable[Layer], alpha: float, beta: float) -> float:
    """Seconds of halos as the earlier states count them: one row of one channel of one sample."""
    total = 0.0
    for layer in layers:
        if layer.kernel and layer.kernel[0] > 1:
            rows = (layer.kernel[0] - 1) // 2 * (layer.input_size[0] + layer.output_size[0])
            total += 4 * alpha + 2 * rows * _ELEMENT * beta
    return total


def _inside() -> tuple[float, float]:
    """Alpha and beta of the devices of a node."""
    return _NVLINK_ALPHA, 1 / _NVLINK


def _between(devices: int, variant: Variant) -> tuple[float, float]:
    """Alpha and beta of a ring through so many devices: node, leaf switch, rack, or several racks."""
    if devices <= _NODE:
        return _inside()
    switches = _LEAF_ALPHA
    if devices > 68:
        switches = 3 * _LEAF_ALPHA
    if devices > 136:
        switches = 4 * _LEAF_ALPHA + _SPINE_ALPHA
    return max(_NVLINK_ALPHA, 2 * (variant.cable_seconds + _PLX_ALPHA) + switches), 1 / _INFINIBAND
