"""What `trial.prepare` hands back: the model, the optimizer and the batches, placed on the trial's device."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from trainwright.checkpoint import Manager
from trainwright.errors import TrialError

if TYPE_CHECKING:
    import torch

__all__ = ["Run"]


class Run:
    """A model in training. `loader` yields batches on `device`; `step` does forward, backward and update."""

    def __init__(
        self,
        model: "torch.nn.Module",
        optimizer: "torch.optim.Optimizer",
        loader: Any = None,
        *,
        loss: "Callable[[torch.nn.Module, Any], torch.Tensor] | None" = None,
        schedule: Any = None,
        device: str = "cpu",
    ) -> None:
        self.device = device
        self.model = model.to(device)
        self.optimizer = optimizer
        self.schedule = schedule
        self._loader = loader
        self._placed = None if loader is None else _Placed(loader, device)
        self._loss = loss
        self._count: Callable[[], None] = lambda: None

    @property
    def loader(self) -> "_Placed":
        """The loader's batches on `device`. Raises `TrialError` if `prepare` was given none."""
        if self._placed is None:
            raise TrialError(
                "run.loader: trial.prepare was given no loader; give trial.prepare(model, optimizer, loader)"
            )
        return self._placed

    def step(self, batch: Any) -> "torch.Tensor":
        """Take one optimizer step on `batch` and return the loss, detached. Needs `prepare(..., loss=)`."""
        if self._loss is None:
            raise TrialError("run.step needs a loss; give trial.prepare(..., loss=f) with f(model, batch) a scalar")
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(self.model, batch)
        loss.backward()
        self.optimizer.step()
        self._count()
        return loss.detach()

    def items(self) -> dict[str, Any]:
        """Return what a resumed run needs, by name; the global generators come with every checkpoint."""
        loader = self._loader if hasattr(self._loader, "load_state_dict") else getattr(self._loader, "generator", None)
        found = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "loader": loader}
        return {name: item for name, item in found.items() if item is not None}

    def count_steps(self, manager: Manager) -> None:
        """Let a manager know of each step of the optimizer, whoever calls it."""

        def count(*_: Any) -> None:
            manager.steps += 1

        if hasattr(self.optimizer, "register_step_post_hook"):
            self.optimizer.register_step_post_hook(count)
        else:  # an optimizer of the user's own: `step` is all that is seen of it
            self._count = count


class _Placed:
    """A loader whose batches arrive on a device."""

    def __init__(self, loader: Any, device: str) -> None:
        self._loader = loader
        self._device = device

    def __iter__(self) -> Iterator[Any]:
        return (_place(batch, self._device) for batch in self._loader)

    def __len__(self) -> int:
        return len(self._loader)


def _place(batch: Any, device: str) -> Any:
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: _place(item, device) for key, item in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_place(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_place(item, device) for item in batch)
    return batch
