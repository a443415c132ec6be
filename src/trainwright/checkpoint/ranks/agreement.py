"""Agreement of ranks on the step at which to save or stop, without a barrier at each step."""

from typing import TYPE_CHECKING

from trainwright.errors import CheckpointError

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup, Work

__all__ = ["Agreement"]


class Agreement:
    """What at least one rank wishes, known to all at the same step.

    Every `every` steps each rank starts an asynchronous max-reduce of its wishes and reads the one before it, so a wish
    is heard by all ranks at the same step, at most two times `every` steps later, and nobody waits for the network in
    between. `group` is a gloo group for this alone, None where one process trains: then wishes come true at once.
    """

    def __init__(self, group: "ProcessGroup | None" = None, *, every: int = 8) -> None:
        self.every = every
        self._group = group
        self._steps = 0
        self._pending: tuple[Work, torch.Tensor] | None = None

    def step(self, *wishes: bool) -> tuple[bool, ...]:
        """Count a step; return for each wish whether all ranks follow it now. All ranks call this at each step."""
        if self._group is None:
            return wishes
        self._steps += 1
        # Between two reduces nobody communicates, so a step costs nothing.
        if self._steps % self.every:
            return (False,) * len(wishes)
        import torch
        import torch.distributed as dist

        # The reduce before this one has had `every` steps to finish, so waiting for it is free.
        agreed = self._read_pending(len(wishes))
        values = torch.tensor(wishes, dtype=torch.int32)
        work = dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._pending = work, values
        return agreed

    def _read_pending(self, count: int) -> tuple[bool, ...]:
        if self._pending is None:
            return (False,) * count
        work, values = self._pending
        try:
            work.wait()
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise CheckpointError(f"the ranks could not agree on a step, one of them seems gone: {reason}") from error
        return tuple(bool(value) for value in values)
