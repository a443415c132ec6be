"""The model repository: models by name and version are loaded, hot-swapped under load, and unloaded."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from trainwright.errors import NotReady, RequestError, TrainwrightError
from trainwright.serve.http.infer_request import INPUT, SET, Signature
from trainwright.serve.http.metrics import SECONDS, Histogram
from trainwright.serve.http.model_folders import ModelFolders
from trainwright.serve.service import Service

__all__ = ["ModelRepository", "NotFound", "ServedModel", "check_ready"]

_LEASE_SECONDS = 0.01  # between looks whether the last request of a replaced model has been answered


class NotFound(RequestError):
    """A name, version or path that is not there; status 404."""


class ServedModel:
    """A version of a model: its service, and what it has answered."""

    def __init__(self, name: str, version: str, service: Service) -> None:
        self.name, self.version, self.service = name, version, service
        self.signature = Signature.of(service.ensemble)
        # Requests that are being answered.
        self.leases = 0
        self.rows = 0
        # Seconds of answered requests: to read, to wait and compute, to reply; and of the refused ones.
        self.seconds = {phase: Histogram(SECONDS) for phase in ("parse", "answer", "reply", "fail")}

    def count_answered(self, rows: int, *seconds: float) -> None:
        """Note an answered request and the seconds of its phases."""
        self.rows += rows
        for histogram, found in zip(self.seconds.values(), seconds, strict=False):
            histogram.observe(found)

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the protocol; -1 stands for any size."""
        signature = self.signature
        shape = [-1] if signature.shape is None else [-1, *signature.shape]
        outputs = [
            {"name": name, "datatype": "BOOL" if name in ("out_of_range", SET) else "FP64", "shape": size}
            for name, size in signature.outputs.items()
        ]
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": "trainwright_ensemble",
            "inputs": [{"name": INPUT, "datatype": signature.datatype, "shape": shape}],
            "outputs": outputs,
        }

    def config(self, most_rows: int) -> dict[str, Any]:
        """Return the protocol's configuration: as the metadata, without the dimension of rows."""
        metadata = self.metadata()
        return {
            "name": self.name,
            "platform": metadata["platform"],
            "backend": "trainwright",
            "max_batch_size": most_rows,
            **{
                end: [
                    {"name": one["name"], "data_type": f"TYPE_{one['datatype']}", "dims": one["shape"][1:] or [1]}
                    for one in metadata[f"{end}s"]
                ]
                for end in ("input", "output")
            },
        }

    def statistics(self) -> dict[str, Any]:
        """Return the protocol's statistics: counts, and nanoseconds of the parts of requests."""
        count = self.seconds["answer"].count
        spent = {phase: round(1e9 * found.sum) for phase, found in self.seconds.items()}
        failed = spent.pop("fail")
        parts = zip(("compute_input", "compute_infer", "compute_output"), spent.values(), strict=True)
        return {
            "name": self.name,
            "version": self.version,
            "inference_count": self.rows,
            "execution_count": self.service.state().get("segments", count),
            "inference_stats": {
                "success": {"count": count, "ns": sum(spent.values())},
                "fail": {"count": self.seconds["fail"].count, "ns": failed},
                **{name: {"count": count, "ns": ns} for name, ns in parts},
            },
        }

    def describe_ensemble(self) -> dict[str, Any]:
        """Return who is in the ensemble, and how it is served now."""
        ensemble = self.service.ensemble
        return {
            "name": self.name,
            "version": self.version,
            "output": ensemble.output,
            "rule": ensemble.rule.to_json(),
            "calibrated": ensemble.calibration is not None,
            "threshold": ensemble.threshold,
            "seconds_per_row": ensemble.cost_seconds,
            "bytes": ensemble.nbytes,
            "members": ensemble.table(),
            "ready": self.service.ready(),
            "state": dict(self.service.state()),
        }


class ModelRepository:
    """The models that are served; belongs to the thread of the event loop, but for the end."""

    def __init__(self, models: Mapping[str, Mapping[str, Service]], source: ModelFolders | None) -> None:
        self._source = source
        self._models = {
            name: {version: ServedModel(name, version, service) for version, service in versions.items()}
            for name, versions in models.items()
        }
        # Why the last attempt to load a name failed, or that it was unloaded.
        self._reasons: dict[str, str] = {}
        self._loading = asyncio.Lock()

    def __iter__(self) -> Any:
        """Iterate over all versions of all models."""
        return iter([model for versions in self._models.values() for model in versions.values()])

    def find(self, name: str, version: str | None = None) -> ServedModel:
        """Return a model, of several versions the newest one unless it is named; raises NotFound."""
        versions = self._models.get(name)
        if not versions:
            raise NotFound(f"model: got {name[:80]!r}; allowed: {', '.join(self._models) or 'none is loaded'}")
        if version is None:
            return versions[max(versions, key=_order_of)]
        if version not in versions:
            raise NotFound(f"version: got {version[:80]!r}; allowed: {', '.join(sorted(versions, key=_order_of))}")
        return versions[version]

    def versions_of(self, name: str) -> list[str]:
        """Return the versions of a model, ascending."""
        return sorted(self._models.get(name, ()), key=_order_of)

    def index(self) -> list[dict[str, str]]:
        """Return all models that are served or could be, with their state."""
        found = [
            {
                "name": model.name,
                "version": model.version,
                "state": "READY" if model.service.ready() else "UNAVAILABLE",
                "reason": self._reasons.get(model.name, ""),
            }
            for model in self
        ]
        known = [] if self._source is None else self._source.names()
        missing = [name for name in dict.fromkeys([*known, *self._reasons]) if not self._models.get(name)]
        return found + [
            {"name": name, "version": "", "state": "UNAVAILABLE", "reason": self._reasons.get(name, "not loaded")}
            for name in missing
        ]

    async def load(self, name: str) -> None:
        """Load a model or its changed versions, beside those that answer, and let them take over once they are ready.

        If one cannot be started nothing changes; raises RequestError with the reason.
        """
        source = self._source
        if source is None or name not in source.names():
            known = "models of the folder that is served" if source is None else ", ".join(source.names())
            raise RequestError(f"model: {name[:80]!r} cannot be loaded; allowed: {known or 'none'}")
        async with self._loading:
            before = self._models.get(name, {})
            running = {version: model.service for version, model in before.items()}
            try:
                services = await asyncio.to_thread(source.load, name, running)
            except TrainwrightError as error:
                self._reasons[name] = str(error)
                kept = f"; what was loaded before still answers: version {', '.join(before)}" if before else ""
                raise RequestError(f"model {name}: cannot be loaded: {error}{kept}") from error
            # In one step, so that every request is answered by one version as a whole.
            self._models[name] = {
                version: before[version] if running.get(version) is service else ServedModel(name, version, service)
                for version, service in services.items()
            }
            self._reasons.pop(name, None)
        left = [model for version, model in before.items() if services.get(version) is not model.service]
        for model in left:
            asyncio.ensure_future(_retire(model))  # noqa: RUF006 - ends by itself

    def unload(self, name: str) -> None:
        """Take a model out of service, once what it was asked has been answered."""
        self.find(name)
        for model in self._models.pop(name).values():
            asyncio.ensure_future(_retire(model))  # noqa: RUF006 - likewise
        self._reasons[name] = "unloaded"

    def ready(self) -> None:
        """Raise NotReady unless all models admit requests."""
        for model in self:
            check_ready(model)

    def drain(self, seconds: float) -> None:
        """End all models, each after what it was asked; from another thread."""
        threads = [threading.Thread(target=model.service.drain, args=(seconds,), daemon=True) for model in self]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def check_ready(model: ServedModel) -> None:
    """Raise NotReady unless a model admits requests."""
    if not model.service.ready():
        raise NotReady("the service starts, ends, or has too few members left; ask again", retry_after_seconds=1.0)


async def _retire(model: ServedModel) -> None:
    """End a model that was replaced, after the requests that had found it."""
    while model.leases:  # noqa: ASYNC110  requests only count them, which costs nothing
        await asyncio.sleep(_LEASE_SECONDS)
    await asyncio.to_thread(model.service.drain, float("inf"))


def _order_of(version: str) -> tuple[int, str]:
    return (int(version) if version.isdigit() else -1, version)
