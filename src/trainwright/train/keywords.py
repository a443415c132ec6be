"""What the loaders take of the settings of torch's DataLoader: by its names, or refused with the reason."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from trainwright.errors import TrialError, closest

__all__ = ["check_whole", "fetching_settings", "refuse_unknown"]

_ORDER = "the order is a function of the seed, or no place in it could be found again; give "
_REFUSED = {
    "generator": f"{_ORDER}seed=..., or trial=trial",
    "sampler": f"{_ORDER}shuffle=False for the order of the data set, weights=... for draws with weights, or a "
    "torch.utils.data.Subset for a part of it",
    "batch_sampler": f"{_ORDER}batch_size=... and drop_last=...",
    "worker_init_fn": "every sample is made under a seed of its own, whichever worker makes it; let the data set open "
    "what it needs when it is first asked for a sample",
    # of streams alone: Loader takes these
    "batch_size": "its batches are cut alike for any number of ranks; give global_batch=..., the samples of all",
    "shuffle": "a stream has the order of its data set; shuffle there, with the global generators",
    "drop_last": "the last batches of a stream are as its shards end; give steps=... for as many whole ones",
}


def refuse_unknown(loader: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Raise `TrialError` for settings that a loader does not take; it suggests the nearest one that it does."""
    name = loader.__name__
    parameters = inspect.signature(loader).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    for setting in settings:
        if setting in _REFUSED:
            raise TrialError(f"{name}: {setting}: is not taken, for {_REFUSED[setting]}")
        raise TrialError(f"{name}: got {setting!r}; allowed: {', '.join(known)}{closest(setting, known)}")


def check_whole(loader: str, setting: str, value: object, least: int = 1) -> None:
    """Raise `TrialError` for what is no whole number, or one below `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise TrialError(f"{loader}: {setting}: got {value!r}; allowed: a whole number >= {least}")


def fetching_settings(
    loader: str, *, workers: int | None, num_workers: int | None, prefetch_factor: int | None
) -> dict[str, Any]:
    """Return the settings of torch's DataLoader by which batches are fetched ahead; `num_workers` names `workers` too.

    Raises `TrialError` for settings that do not fit each other.
    """
    if workers is not None and num_workers is not None:
        raise TrialError(f"{loader}: got workers={workers!r} and num_workers={num_workers!r}; allowed: one of them")
    count = next((item for item in (workers, num_workers) if item is not None), 0)
    check_whole(loader, "workers" if num_workers is None else "num_workers", count, 0)
    if prefetch_factor is None:
        return {"num_workers": count}
    check_whole(loader, "prefetch_factor", prefetch_factor)
    if not count:
        raise TrialError(
            f"{loader}: prefetch_factor: got {prefetch_factor!r} without workers, which fetch ahead; give workers=1 or "
            "more, or leave it out"
        )
    return {"num_workers": count, "prefetch_factor": prefetch_factor}
