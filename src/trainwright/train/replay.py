"""Replays an interrupted epoch: it restarts in the training function without computing any of its steps twice.

A checkpoint within an epoch holds the losses of its steps so far, and where generators and loader stood at its start.
The next run of the trial goes through the epoch from there: `run.step` returns the losses that are known, and after the
last of them all is put back as the checkpoint has it. So a sum of losses or a counter of the training function's own
ends as if nothing had happened, whatever loader there is.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainwright.checkpoint.state.rng import capture_rng_state, restore_rng_state
from trainwright.checkpoint.state.tree import Encoder
from trainwright.errors import CheckpointStateError, TrialError

if TYPE_CHECKING:
    import torch

__all__ = ["EpochReplay"]

_TOGETHER = 1024
"""Losses that are stacked into one tensor: a scalar of its own takes 512 bytes of a GPU."""


class EpochReplay:
    """The steps of the epoch in work, as an item of a trial's checkpoints. `loader` has a state, or is None."""

    def __init__(self, loader: Any) -> None:
        self.epoch = 0
        """The epoch in work."""
        self.batch: int | None = None
        """The samples of a step in it, once that is known."""
        self.length: int | None = None
        """How many steps it has, if that is not a pass over the loader."""
        self.done = 0
        """How many of its steps are done."""
        self._loader = loader
        # Generators and loader at the start of the epoch; None if they cannot be kept.
        self._start: dict[str, Any] | None = None
        self._losses: list[torch.Tensor] = []
        # Of an epoch that was interrupted: losses that are known, and what puts all back after the last of them.
        self._known: list[float] = []
        self._kind = ""
        self._finish: Callable[[], None] | None = None

    @property
    def replays(self) -> bool:
        """Whether steps are known that the training function has yet to go through."""
        return self.done < len(self._known)

    @property
    def possible(self) -> bool:
        """Whether a run that is interrupted now can go on behind the last step."""
        return self._start is not None and not self.replays

    @property
    def keepable(self) -> bool:
        """Whether generators and loader have states that a checkpoint can hold."""
        return self._read_start() is not None

    def begin(self, epoch: int, *, keep: bool) -> None:
        """Take note that an epoch begins here; one that was interrupted begins as it did.

        With `keep` this one is kept, so that a checkpoint within it can be gone on from.
        """
        if self.replays and epoch == self.epoch and not self.done:
            self._rewind()
            return
        self.end()
        self.epoch = epoch
        self._start = self._read_start() if keep else None

    def end(self) -> None:
        """Take note that the epoch is over. Raises `TrialError` if fewer steps were taken than before."""
        if self.replays:
            raise TrialError(
                f"epoch {self.epoch} was interrupted after step {len(self._known)} and has now ended after step "
                f"{self.done}: the number of its steps depends on what a checkpoint does not hold; give "
                "trial.prepare(..., save_every=None), which saves at reports only"
            )
        self.batch, self.length, self.done, self._start = None, None, 0, None
        self._losses, self._known = [], []

    def note(self, loss: "torch.Tensor") -> None:
        """Take note of the loss of a step that was computed."""
        self.done += 1
        self._losses.append(loss.detach().reshape(()))
        if len(self._losses) > _TOGETHER:
            import torch

            whole, rest = self._losses[0].reshape(-1), self._losses[1:]
            self._losses = [torch.cat([whole, torch.stack(rest)])]

    def recall(self, device: str) -> "torch.Tensor":
        """Return the loss of the next step, which was computed before the interruption."""
        import torch

        loss = torch.tensor(self._known[self.done], dtype=getattr(torch, self._kind), device=device)
        self.note(loss)
        if not self.replays and self._finish is not None:
            self._finish()
            self._finish = None
        return loss

    def resume(self, finish: Callable[[], None]) -> None:
        """Let `finish` put all back where a checkpoint had it, once its steps were gone through."""
        if self._known:
            self._finish = finish
            self._rewind()

    def forget(self) -> None:
        """Let the epoch begin as a new one: the checkpoint is another trial's."""
        self._known, self._start = [], None

    def state_dict(self) -> dict[str, Any]:
        """Return the steps so far of the epoch in work, and how it began; next to nothing at the end of an epoch."""
        if not self.done or self._start is None:
            return {"epoch": self.epoch}
        import torch

        losses = torch.cat([loss.reshape(-1) for loss in self._losses])
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "length": self.length,
            "kind": str(losses.dtype).removeprefix("torch."),
            # A number of 64 bits holds every narrower one as it is.
            "losses": _pack(losses.to(torch.float64)),
            "start": self._start,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go through the epoch that was interrupted, if one was."""
        self.epoch, self.done, self._losses = state["epoch"], 0, []
        self._known = _unpack(state["losses"]).tolist() if "losses" in state else []
        self.batch, self.length = state.get("batch"), state.get("length")
        self._kind, self._start = state.get("kind", ""), state.get("start")

    def _read_start(self) -> dict[str, Any] | None:
        loader = self._loader
        state = None if loader is None else getattr(loader, "state_dict", getattr(loader, "get_state", None))()  # type: ignore[misc]
        start = {"random": _pack(capture_rng_state()), "loader": _pack(state)}
        try:
            Encoder().encode(start, "replay")
        except CheckpointStateError:
            # A loader with a state of its own kind: its epochs are saved at their ends only.
            return None
        return start

    def _rewind(self) -> None:
        """Put generators and loader where they were at the start of the epoch."""
        if self._start is None:
            return
        restore_rng_state(_unpack(self._start["random"]))
        if self._loader is not None:
            load = getattr(self._loader, "load_state_dict", getattr(self._loader, "set_state", None))
            load(_unpack(self._start["loader"]))  # type: ignore[misc]  # one of the two is there, as in `_read_start`


def _pack(value: Any) -> Any:
    """Return a value with bytes for tensors: these differ between ranks, which checkpoints do not expect of tensors."""
    import torch

    if isinstance(value, torch.Tensor):
        whole = value.detach().cpu().contiguous()
        content = whole.reshape(-1).view(torch.uint8).numpy().tobytes()
        return {_TENSOR: str(whole.dtype).removeprefix("torch."), "shape": list(whole.shape), "content": content}
    if isinstance(value, dict):
        return {key: _pack(item) for key, item in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(_pack(item) for item in value)
    return value


_TENSOR = "packed tensor"


def _unpack(value: Any) -> Any:
    import torch

    if isinstance(value, dict) and _TENSOR in value:
        flat = torch.frombuffer(bytearray(value["content"]) or bytearray(8), dtype=getattr(torch, value[_TENSOR]))
        return flat[: len(value["content"]) // flat.element_size()].reshape(value["shape"]).clone()
    if isinstance(value, dict):
        return {key: _unpack(item) for key, item in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(_unpack(item) for item in value)
    return value
