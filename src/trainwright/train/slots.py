"""Bit-exact gradients on any number of ranks: the global batch is cut into logical slots, summed in a fixed order.

Floating-point sums depend on their order and kernels on the shape of a batch, so an all-reduce over N ranks rounds
otherwise than one over M. Here each slot is a forward and backward pass of its own, of one shape; the gradients of all
slots are gathered and summed in the order of the slots, wherever they were made.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainwright.errors import TrialError
from trainwright.train.batch_slicing import samples_in, slice_batch
from trainwright.train.worker_dataset import generators_kept, sample_key, seed_generators

if TYPE_CHECKING:
    import torch

__all__ = ["Slots"]

_GATHERED_BYTES = 64 * 2**20
"""Of memory for what is gathered from all ranks at a time."""


class Slots:
    """A model's gradients, summed over `count` slots of the global batch; `count` is a multiple of every world size.

    In place of `loss.backward()`: `loss = slots.backward(batch, loss_of)` with this rank's slice of the batch and
    `loss_of(model, batch)` a mean over it. Every slot begins from the same buffers, and their means over the slots are
    what stays: so batch normalisation has the statistics of a slot. Dropout and all else that draws from the global
    generators is seeded from (seed, step, slot). Parameters without a gradient get zeros.

    It costs memory for count / world size gradients, and gathers count of them where an all-reduce moves two. Ranks are
    those of torch.distributed; their models are made equal to that of rank 0 at the start. Keep it with the checkpoint:
    it counts the steps. Raises `TrialError` for a `count` or batch that cannot be cut.
    """

    def __init__(self, model: "torch.nn.Module", *, count: int, seed: int) -> None:
        import torch
        import torch.distributed as dist

        together = dist.is_available() and dist.is_initialized()
        self._rank, self._world = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
        if count < 1 or count % self._world:
            raise TrialError(
                f"count of slots must be a positive multiple of the world size {self._world}, got {count}; allowed "
                "world sizes are its divisors"
            )
        self.count = count
        self.steps = 0
        """The steps done; part of the seeds."""
        self._model = model
        self._key = sample_key(seed, "slot")
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        if self._world > 1:
            with torch.no_grad():
                for tensor in (*model.parameters(), *model.buffers()):
                    dist.broadcast(tensor, 0)

    def backward(self, batch: Any, loss: "Callable[[torch.nn.Module, Any], torch.Tensor]") -> "torch.Tensor":
        """Set every parameter's gradient to the mean over all slots; return the mean loss, detached."""
        import torch

        slots_here = self.count // self._world
        samples = samples_in(batch)
        if samples % slots_here or not samples:
            raise TrialError(
                f"a batch of {samples} cannot be cut into {slots_here} slots of one size; give the loader "
                "drop_last=True and a global_batch that is a multiple of the slots"
            )
        before = [buffer.clone() for buffer in self._model.buffers()]
        gradients, buffers, losses = [], [], []
        with generators_kept():
            for place, part in enumerate(slice_batch(batch, samples // slots_here)):
                # Every slot starts from the same buffers and from generators of its own, whatever ran before it.
                with torch.no_grad():
                    for buffer, value in zip(self._model.buffers(), before, strict=True):
                        buffer.copy_(value)
                seed_generators(self._key, self.steps, self._rank * slots_here + place, 0)
                _seed_devices(self._parameters)
                for parameter in self._parameters:
                    # Autograd would add up the slots of this rank first: the order would depend on the ranks.
                    parameter.grad = None
                loss_value = loss(self._model, part)
                loss_value.backward()
                losses.append([_wide(loss_value)])
                found = [each.grad if each.grad is not None else torch.zeros_like(each) for each in self._parameters]
                gradients.append(list(map(_wide, found)))
                buffers.append([_wide(buffer) for buffer in self._buffers])
        # The loss is averaged as gradients are: in the order of the slots.
        [mean_loss] = self._means(losses, [loss_value.detach()])
        with torch.no_grad():
            for parameter, mean in zip(self._parameters, self._means(gradients, self._parameters), strict=True):
                parameter.grad = mean
            for buffer, mean in zip(self._buffers, self._means(buffers, self._buffers), strict=True):
                buffer.copy_(mean)
        self.steps += 1
        return mean_loss

    def state_dict(self) -> dict[str, int]:
        """Return the number of steps and of slots."""
        return {"steps": self.steps, "count": self.count}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on counting. Raises `TrialError` for another number of slots: sums would round otherwise."""
        if state["count"] != self.count:
            raise TrialError(f"Slots: the checkpoint has {state['count']} slots, got count={self.count}")
        self.steps = state["steps"]

    def _means(self, rows: "Sequence[Sequence[torch.Tensor]]", like: "Sequence[torch.Tensor]") -> "list[torch.Tensor]":
        """Return the means over all slots of what those of this rank gave, a row a slot, in the types of `like`."""
        import torch
        import torch.distributed as dist

        if not like:
            return []
        flat = torch.stack([torch.cat([tensor.reshape(-1) for tensor in row]) for row in rows])
        # In pieces, so that the gradients of all slots are never in memory together.
        width = max(1, _GATHERED_BYTES // (self.count * flat.element_size()))
        totals = []
        for piece in flat.split(width, dim=1):
            everyone = [piece]
            if self._world > 1:
                everyone = [torch.empty_like(piece).contiguous() for _ in range(self._world)]
                dist.all_gather(everyone, piece.contiguous())
            first, *others = torch.cat(everyone)
            total = first.clone()
            # One by one: a sum over an axis may take another order.
            for row in others:
                total.add_(row)
            totals.append(total / self.count)
        pieces = torch.cat(totals).split([tensor.numel() for tensor in like])
        return [mean.view(tensor.shape).to(tensor.dtype) for mean, tensor in zip(pieces, like, strict=True)]


def _wide(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return a copy in a type in which many may be summed."""
    import torch

    return tensor.detach().to(torch.float64 if tensor.dtype == torch.float64 else torch.float32, copy=True)


def _seed_devices(parameters: "Sequence[torch.Tensor]") -> None:
    """Seed the generators of the model's GPUs from torch's own, which is seeded for the slot."""
    import torch

    for index in sorted({parameter.device.index for parameter in parameters if parameter.is_cuda}):
        torch.cuda.default_generators[index].manual_seed(torch.default_generator.initial_seed())
