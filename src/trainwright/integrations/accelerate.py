"""Hugging Face's accelerate: `prepare` restores a trial by `load_state`, and each report saves by `save_state`."""

from pathlib import Path
from typing import Any

from trainwright.errors import MissingExtra, TrialMisuse
from trainwright.train import Trial

try:
    import torch
    from accelerate import Accelerator
except ImportError as error:
    raise MissingExtra.of("trainwright.integrations.accelerate", "accelerate", "accelerate") from error

__all__ = ["prepare"]

_LOADERS = "trainwright-loaders.pt"


def prepare(trial: Trial, accelerator: Accelerator, *objects: Any, **options: Any) -> Any:
    """Return what `accelerator.prepare(*objects, **options)` returns, restored from the trial's newest checkpoint.

    Call it last before `for epoch in trial.epochs(n)`: from here on each `trial.report` saves the accelerator's state,
    with all that was prepared or registered by `accelerator.register_for_checkpointing`. May end the trial, quietly.
    """
    if not isinstance(accelerator, Accelerator):
        raise TrialMisuse(
            f"prepare: got {type(accelerator).__name__} in place of the accelerator; give prepare(trial, accelerator, "
            "model, optimizer, loader)"
        )
    prepared = accelerator.prepare(*objects, **options)
    loaders = [item for item in (prepared if isinstance(prepared, tuple) else (prepared,)) if _is_loader(item)]

    def write(path: Path) -> None:
        accelerator.save_state(str(path))
        # What accelerate leaves out: where the order of each loader stands. Equal on all ranks.
        if trial.rank == 0:
            torch.save([_loader_state(loader) for loader in loaders], path / _LOADERS)

    found = trial.checkpoint_with(write)
    if found is not None:
        for loader, state in zip(loaders, torch.load(found / _LOADERS, weights_only=True), strict=True):
            _restore_loader(loader, state)
        # Generators are restored in it, last of all.
        accelerator.load_state(str(found))
    return prepared


def _is_loader(item: Any) -> bool:
    return isinstance(item, torch.utils.data.DataLoader) or hasattr(item, "synchronized_generator")


def _loader_state(loader: Any) -> dict[str, Any]:
    """Return the passes that were made, which seeds of a seedable sampler follow, and the state of its generators."""
    return {
        "iteration": getattr(loader, "iteration", 0),
        "generators": {place: generator.get_state() for place, generator in _find_generators(loader).items()},
    }


def _restore_loader(loader: Any, state: dict[str, Any]) -> None:
    if hasattr(loader, "iteration"):
        loader.iteration = state["iteration"]
    # A seedable sampler makes its generator in its first pass, and seeds it anew in each.
    for place, generator in _find_generators(loader).items():
        generator.set_state(state["generators"][place])


def _find_generators(loader: Any) -> dict[str, torch.Generator]:
    """Return the generators that the order of a loader is drawn from, by where they are."""
    batches = getattr(loader, "batch_sampler", None)
    holders = {
        "loader": loader,
        "sampler": getattr(loader, "sampler", None),
        "batches": getattr(batches, "sampler", None),
    }
    found = {place: getattr(holder, "generator", None) for place, holder in holders.items()}
    found["synchronized"] = getattr(loader, "synchronized_generator", None)
    return {place: one for place, one in found.items() if isinstance(one, torch.Generator)}
