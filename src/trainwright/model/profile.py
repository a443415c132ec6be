"""Profiles of models: traced, measured or read from a file, and predicted for a device."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from trainwright.cluster.device import Device, roofline_seconds
from trainwright.errors import MissingExtra, ProfileError
from trainwright.files import read_json, write_text
from trainwright.model.chain import Chain
from trainwright.model.layer import Layer, ProfileFields, stages_of
from trainwright.records import check_schema, fail_with, read_record

if TYPE_CHECKING:
    from torch import nn

    from trainwright.model.trace.step import Loss, MakeOptimizer

__all__ = ["Profile", "Traces"]

SCHEMA = 2
_TIMES = {
    "forward_seconds", "backward_seconds", "framework_seconds", "origin", "torch_version",
    "smaller_batches", "smaller_forward_seconds", "smaller_backward_seconds", "smaller_framework_seconds",
    "step_seconds",
}  # fmt: skip
_RETRACE = "; trace the model again: Profile.trace(model, sample).save(path)"


class Profile(ProfileFields):
    """A model and a sample batch of `batch` samples, as a chain of blocks in order of execution."""

    __slots__ = ()

    @classmethod
    def trace(
        cls,
        model: "nn.Module",
        sample: Any,
        *,
        loss: "Loss | None" = None,
        optimizer: "str | MakeOptimizer | None" = "adamw",
        precision: str = "fp32",
        device: str | None = None,
        name: str = "",
        fuse: bool = False,
    ) -> Self:
        """Return the profile of one training step, found without running a kernel (fake tensors).

        `sample` is a tensor, a tuple of arguments or a mapping of keywords, on any device or on `meta`; with
        `loss(model, sample)`, a scalar, it is whatever that takes. `optimizer` is "sgd", "momentum", "adam", "adamw", a
        function of the parameters, or None for no update; `precision` fp32 (as the model is), amp-fp16, amp-bf16 or
        bf16. With `fuse` what lies between two products of a stage is one
        kernel, as `torch.compile(model)` makes it, and its inside reaches no memory; a loss outside the model stays as
        it is, and the step's peak is not known. The model is copied without its data and stays as it is.

        A model that depends on values cannot be traced: its step is then run and timed, as by `measured`, and
        `origin` says so. Raises ProfileError, with the module and the operation, if that fails too.
        """
        MissingExtra.check_torch("a profile of a model")
        from trainwright.model.measure.profiling import TraceOptions, trace_model

        options = TraceOptions(
            model=model,
            sample=sample,
            loss=loss,
            optimizer=optimizer,
            precision=precision,
            device=device,
            name=name,
            fuse=fuse,
        )
        return cls._from_fields(trace_model(options))

    @classmethod
    def measured(
        cls,
        model: "nn.Module",
        sample: Any,
        *,
        warmup: int = 3,
        repeats: int = 10,
        profiler_trace: str | Path | None = None,
        **settings: Any,
    ) -> Self:
        """Return the profile of `trace` with the seconds of every layer on this machine (or its CUDA device).

        `settings` are those of `trace` but `fuse`. With `profiler_trace`, a file of `torch.profiler` with training
        steps of this model on batches like the sample (`export_chrome_trace`, best with `record_shapes=True`), nothing
        is run: the seconds are those of that machine, and `step_seconds` says what its steps took.

        Each operation is run alone on tensors like the model's, once for all of equal shapes, dtypes and strides: the
        least of `repeats` times after `warmup`. Passes through a copy of the model are timed too: what these take more
        than the sum (weights and gradients that no cache holds; or less, if negative) is `framework_seconds`. All this
        is measured of a quarter, a sixteenth and a sixty-fourth of the batch too, where the model takes them, for small
        operations use a device less well: the oracle reads the seconds of a micro-batch off straight lines between
        them. Operations that cannot be run alone are listed in `uncounted`. Raises ProfileError as `trace` does, and
        for clocks that stand still or go back.
        """
        MissingExtra.check_torch("a profile of a model")
        from trainwright.model.measure.profiling import TraceOptions, measure_model, profile_trace

        options = TraceOptions(model=model, sample=sample, fuse=False, **settings)
        if profiler_trace is not None:
            return cls._from_fields(profile_trace(options, profiler_trace))
        return cls._from_fields(measure_model(options, warmup=warmup, repeats=repeats))

    def on(self, device: Device) -> Self:
        """Return this profile with seconds on `device` for every layer that has no measured ones, by the roofline.

        Raises ProfileError for a device whose speed at the profile's precision is not known.
        """
        # Mixed precision computes its products in the lower of its two precisions.
        rate = device.flops.get(self.precision.removeprefix("amp-"), 0.0)
        if rate <= 0 or device.memory_bandwidth <= 0:
            known = ", ".join(device.flops) or "none"
            raise ProfileError(
                f"device {device.kind!r}: no time can be predicted for {self.precision}; allowed: a device with "
                f"bandwidth and flops for that precision (it has {known}); calibrate it, or give both in the file"
            )

        def with_seconds(layer: Layer) -> Layer:
            if layer.origin == "measured":
                return layer
            # Kinds of layers reach different shares of the peak, where a calibration has measured them.
            peak = rate * device.efficiency.get(layer.kind, 1.0)

            def seconds(flops: float, size: float, launches: int) -> float:
                fixed = launches * device.launch_seconds
                bandwidth = device.memory_bandwidth
                return float(roofline_seconds(flops, size, rate=peak, bandwidth=bandwidth, fixed_seconds=fixed))

            return replace(
                layer,
                forward_seconds=seconds(layer.forward_flops, layer.forward_bytes, layer.launches),
                backward_seconds=seconds(layer.backward_flops, layer.backward_bytes, layer.backward_launches),
                origin="roofline",
            )

        blocks = tuple(replace(block, layers=tuple(map(with_seconds, block.layers))) for block in self.blocks)
        return replace(self, blocks=blocks)

    @property
    def chain(self) -> Chain:
        """The stages in order, with the seconds of their layers, as memory plans and pipelines take them.

        Raises ProfileError where layers have no seconds: predict them with `on`, or measure them.
        """
        if any(layer.forward_seconds is None for block in self.blocks for layer in block.layers):
            raise ProfileError(
                f"profile {self.name!r}: got layers without seconds; allowed: profile.on(device), or Profile.measured"
            )
        owners = {"parameters": self.parameter_bytes, "buffers": self.buffer_bytes, "optimizer": self.state_bytes}
        element = self.parameter_bytes / max(1, self.parameters)
        stages = [stage for block in self.blocks for stage in stages_of(block, element)]
        fixed = {**owners, "common": self.common_bytes}
        return Chain(
            stages=tuple(stages),
            input_bytes=self.input_bytes,
            fixed=fixed,
            name=self.name,
            plain_peak_bytes=self.peak_bytes,
        )

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a profile from a JSON file.

        Raises ProfileError for what is none, or of another schema or version of torch.
        """
        document = read_json(
            path, "profile", allowed="a file that Profile.trace(model, sample).save(path) wrote", error=ProfileError
        )
        where = f"profile {str(path)!r}"
        fail = fail_with(where, ProfileError, _RETRACE)
        content = check_schema(document, SCHEMA, fail)
        values = {name: value for name, value in content.items() if name not in {"schema", "hash"}}
        profile = read_record(cls, values, fail)
        installed = _installed_torch()
        # Another torch may save other tensors: its bytes would be wrong, so the profile is refused.
        if profile.torch_version and installed and profile.torch_version.split("+")[0] != installed.split("+")[0]:
            raise ProfileError(f"{where}: traced by torch {profile.torch_version}, here is torch {installed}{_RETRACE}")
        # A file that was edited by hand no longer describes the model that was traced.
        if document.get("hash") != profile.hash:
            raise ProfileError(f"{where}: its hash {document.get('hash')!r} is not that of its content{_RETRACE}")
        return profile

    def save(self, path: str | Path) -> None:
        """Write the profile to a JSON file."""
        content = {"schema": SCHEMA, "hash": self.hash, **asdict(self)}
        write_text(path, "profile", json.dumps(content, indent=1) + "\n", error=ProfileError)

    @property
    def hash(self) -> str:
        """Hash of the chain, its work and its bytes; times and versions have no part in it."""
        text = json.dumps(_without_times(asdict(self)), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def _from_fields(cls, found: ProfileFields) -> Self:
        return cls(**{field.name: getattr(found, field.name) for field in fields(found)})


class Traces:
    """The profiles of one model and sample in every precision that is asked for, each traced once.

    The oracle takes it in place of a profile, and so plans with what autocast does to this model. `settings` are those
    of `Profile.trace` except the precision. Do not change the model or the sample while it is in use.
    """

    def __init__(self, model: "nn.Module", sample: Any, **settings: Any) -> None:
        self._model, self._sample, self._settings = model, sample, settings
        self._known: dict[str, Profile] = {}

    def __call__(self, precision: str) -> Profile:
        """Return the profile in a precision. Raises `ProfileError` as `Profile.trace` does."""
        if precision not in self._known:
            self._known[precision] = Profile.trace(self._model, self._sample, precision=precision, **self._settings)
        return self._known[precision]


def _without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_times(item) for key, item in value.items() if key not in _TIMES}
    return [_without_times(item) for item in value] if isinstance(value, list | tuple) else value


def _installed_torch() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""  # a login node: the profile is only read
