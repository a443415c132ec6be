"""Hugging Face's accelerate: `epochs` restores a trial by `load_state`, and each report saves by `save_state`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainwright.errors import MissingExtra, TrialMisuse
from trainwright.train import Trial

with MissingExtra.instead_of_import_error("trainwright.integrations.accelerate", "accelerate", "accelerate"):
    import torch
    from accelerate import Accelerator

__all__ = ["epochs"]

_LOADERS = "trainwright-loaders.pt"


def epochs(trial: Trial, accelerator: Accelerator, count: int | None = None) -> Iterator[int]:
    """Restore the accelerator from the trial's newest checkpoint, and return `trial.epochs(count)`.

    From here on each `trial.report` saves the accelerator's state: all that was given to `accelerator.prepare` or
    `accelerator.register_for_checkpointing` before the loop. May end the trial here, quietly.
    """
    if not isinstance(accelerator, Accelerator):
        raise TrialMisuse(
            f"epochs: got {type(accelerator).__name__} in place of the accelerator; give epochs(trial, accelerator, 9)"
        )
    models, loaders = accelerator._models, accelerator._dataloaders  # noqa: SLF001 -- it has no other list of them
    if not models:
        raise TrialMisuse(
            "epochs: the accelerator has no model, so nothing could be saved; call accelerator.prepare(model, "
            "optimizer, loader) before the loop"
        )

    def write(path: Path) -> None:
        project = accelerator.project_configuration
        # It would name the folder itself, and leave the one that is asked for empty.
        named, project.automatic_checkpoint_naming = project.automatic_checkpoint_naming, False
        try:
            accelerator.save_state(str(path))
        finally:
            project.automatic_checkpoint_naming = named
        # What accelerate leaves out: where the order of each loader stands. Equal on all ranks.
        if trial.rank == 0:
            torch.save([_loader_state(loader) for loader in loaders], path / _LOADERS)

    found = trial.checkpoint_with(write)
    if found is not None:
        for loader, state in zip(loaders, torch.load(found / _LOADERS, weights_only=True), strict=True):
            _restore_loader(loader, state)
        # Generators are restored in it, last of all.
        accelerator.load_state(str(found))
    return trial.epochs(count)


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
