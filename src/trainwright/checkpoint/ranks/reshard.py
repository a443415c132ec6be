"""Reshards a checkpoint from N ranks to M: which part of a tensor each rank writes, and reads.

A tensor is its canonical name and its global shape. A plain tensor is the same on all ranks, as in data parallelism; a
DTensor is cut into slices, as by FSDP2 and tensor parallelism. What was saved in one way is restored in any other.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from trainwright.checkpoint.manifest import TensorRecord
from trainwright.checkpoint.ranks.merging import PipelineParts
from trainwright.checkpoint.ranks.tensor_slices import TensorShare, TensorSlice, open_slices
from trainwright.checkpoint.save.publish import Published
from trainwright.checkpoint.state.captured import canonical_names
from trainwright.errors import CheckpointStateError

if TYPE_CHECKING:
    import torch

__all__ = ["HeldTensors", "read_resharded", "read_targets", "share_tensors"]


def _find_dtensor() -> Any:
    """Return the class DTensor, or () if nobody has loaded it: then no tensor is one, and loading takes a second."""
    # Its second name is that of torch 2.4.
    loaded = map(sys.modules.get, ("torch.distributed.tensor", "torch.distributed._tensor"))
    # A module that another thread is loading has no class yet, and then no tensor is one either.
    return next(filter(None, (getattr(module, "DTensor", None) for module in loaded)), ())


def share_tensors(
    tensors: "Mapping[str, torch.Tensor]",
    rank: int,
    world: int,
    *,
    own: str = "",
    of_first: Collection[str] = (),
    parts: PipelineParts | None = None,
) -> "tuple[dict[str, torch.Tensor], dict[str, TensorShare]]":
    """Return what this rank holds: the local tensors that are not empty, and the share that each is.

    Of what several ranks hold one writes it: plain tensors are dealt out by size, of replicas of a DTensor the first
    writes. Names that begin with `own` are this rank's alone; of those in `of_first` the first rank's value counts.
    `parts` tells which are not on all ranks.
    """
    DTensor = _find_dtensor()

    everyone = tuple(range(world))

    def holders(name: str) -> tuple[int, ...]:
        known = None if parts is None else parts.holding(name)
        return everyone if known is None else known

    local: dict[str, torch.Tensor] = {}
    shares: dict[str, TensorShare] = {}
    # These tensors are equal on all of their holders: one of them writes, the others compare.
    alike = {
        name: tensor
        for name, tensor in tensors.items()
        if not isinstance(tensor, DTensor) and not (own and name.startswith(own)) and name not in of_first
    }
    writer = _deal_writers({name: (tensor.nbytes, holders(name)) for name, tensor in alike.items()})
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        # Those in `of_first` may differ between ranks: only the first holder's are written, and nothing is compared.
        if name in of_first and rank != holders(name)[0] and not isinstance(tensor, DTensor):
            continue
        if isinstance(tensor, DTensor):
            box, replica, copies = _slice_of(name, tensor)
            # An empty part is not written, except that the first rank writes a tensor that is empty as a whole.
            if prod(box.lengths) or (not prod(shape) and not rank):
                local[name] = tensor.to_local()
                shares[name] = TensorShare(shape=shape, box=box, writes=not replica, shared=copies > 1)
        else:
            shared = name in alike and len(holders(name)) > 1
            local[name] = tensor
            shares[name] = TensorShare(
                shape=shape, box=TensorSlice.whole(shape), writes=writer.get(name, rank) == rank, shared=shared
            )
    return local, shares


def read_targets(state: Mapping[str, Any], live: "Mapping[str, torch.Tensor]") -> "Callable[[TensorRecord], Any]":
    """Return a function that gives, for a stored tensor, the DTensor whose layout it should have here; None: whole.

    That is the tensor of that name in `live`; for optimizer state that is not there yet, its parameter, if the shapes
    are equal.
    """
    import torch

    DTensor = _find_dtensor()

    parameters: dict[str, torch.Tensor] = {}
    for item, value in state.items():
        if isinstance(value, torch.nn.Module):
            named = dict(value.named_parameters())
            canonical = canonical_names(named)
            parameters |= {f"{item}.{canonical[name]}": parameter for name, parameter in named.items()}

    def like(record: TensorRecord) -> torch.Tensor | None:
        found = live.get(record.name)
        if found is None:
            # Moments are laid out as their parameter: "optimizer.state.model.0.weight.exp_avg" as "model.0.weight".
            _, _, parameter = record.name.rpartition(".")[0].partition(".state.")
            found = parameters.get(parameter)
        return found if isinstance(found, DTensor) and tuple(found.shape) == record.shape else None

    return like


class HeldTensors(NamedTuple):
    """The whole tensors of a checkpoint that some rank still has in memory.

    Those of this rank are in `held`, as bytes; `sizes` are those of the rank that has most, whose content all `send`.
    """

    held: "Mapping[str, torch.Tensor]"
    sizes: Mapping[str, int]
    send: "Callable[[torch.Tensor], None]"

    def fill(self, name: str, target: "torch.Tensor") -> bool:
        """Fill a tensor on the CPU, on all ranks; return False if it has to be read."""
        import torch

        if self.sizes.get(name) != target.nbytes:
            return False
        content = target.view(-1).view(torch.uint8)
        if name in self.held:
            content.copy_(self.held[name])
        self.send(content)
        return True


def read_resharded(
    published: Published,
    like: "Callable[[TensorRecord], Any]",
    *,
    places: "Mapping[str, torch.Tensor]",
    memory: "HeldTensors",
    check: bool,
    skip: frozenset[str],
) -> "dict[str, torch.Tensor]":
    """Return the tensors of a checkpoint as this rank needs them, on the device of its like.

    They are read into `places` where one fits, else into new memory. What some rank has in `memory` is not read. Only
    the chunks that hold a part of the rest are, and with `check` compared. `skip` names tensors that are not needed.
    Raises `CheckpointCorruptError`.
    """
    DTensor = _find_dtensor()

    records = [record for record in published.manifest.tensors if record.name not in skip]
    likes = {record.name: like(record) for record in records}
    boxes = {
        record.name: TensorSlice.whole(record.shape) if like is None else _slice_of(record.name, like)[0]
        for record, like in zip(records, likes.values(), strict=True)
    }
    found = {
        record.name: _memory_for(record, boxes[record.name], None if like is not None else places.get(record.name))
        for record, like in zip(records, likes.values(), strict=True)
    }
    left = [one for one in records if likes[one.name] is not None or not memory.fill(one.name, found[one.name])]
    with open_slices(published.path, published.manifest, check=check) as reader:
        reader.fill([(record, boxes[record.name], found[record.name]) for record in left])
    for name, target in likes.items():
        # Every rank has read its own part, so that the DTensor is made without a message.
        if target is not None:
            found[name] = DTensor.from_local(
                found[name].to(target.device),
                target.device_mesh,
                target.placements,
                run_check=False,
                shape=target.shape,
                stride=target.stride(),
            )
    # Tied tensors are stored under one name, and get their other names again here.
    aliases = {name: home for name, home in published.manifest.ties.items() if home in found}
    return found | {alias: found[home] for alias, home in aliases.items()}


def _deal_writers(tensors: Mapping[str, tuple[int, tuple[int, ...]]]) -> dict[str, int]:
    """Return, for the bytes and holders of each name, who writes it; all holders find the same.

    Those that the same ranks hold are dealt out among them, so that all have about as many bytes of these.
    """
    loads: dict[tuple[int, ...], list[int]] = {}
    writer = {}
    # Greedy by falling size: each tensor goes to the holder with the fewest bytes so far. Names break ties, so that all
    # ranks compute the same without a message.
    for name in sorted(tensors, key=lambda name: (-tensors[name][0], name)):
        size, ranks = tensors[name]
        of_these = loads.setdefault(ranks, [0] * len(ranks))
        place = of_these.index(min(of_these))
        writer[name] = ranks[place]
        of_these[place] += size
    return writer


def _memory_for(record: TensorRecord, part: TensorSlice, place: "torch.Tensor | None") -> "torch.Tensor":
    """Return `place` if the slice can be read into it, else new memory."""
    import torch

    dtype = getattr(torch, record.dtype)
    if (
        place is not None
        and (place.dtype, tuple(place.shape)) == (dtype, part.lengths)
        and place.device.type == "cpu"
        and place.is_contiguous()
    ):
        return place
    return torch.empty(part.lengths, dtype=dtype)


def _slice_of(name: str, tensor: Any) -> tuple[TensorSlice, int, int]:
    """Return this rank's slice of a DTensor, which of its copies this is, and how many there are."""
    if any(placement.is_partial() for placement in tensor.placements):
        raise CheckpointStateError(
            f"{name}: a checkpoint cannot keep a DTensor placed as {tensor.placements}; allowed: Shard and Replicate; "
            "redistribute it first"
        )
    # The same hook by which torch.distributed.checkpoint asks a DTensor for its chunk.
    (chunk,) = tensor.__create_chunk_list__()
    place = tensor.device_mesh.get_coordinate() or (0,) * tensor.device_mesh.ndim
    # Of the copies along replicated mesh dimensions, the one at coordinate 0 writes.
    replicas = [dim for dim, placement in enumerate(tensor.placements) if placement.is_replicate()]
    copies = prod(tensor.device_mesh.size(dim) for dim in replicas)
    return TensorSlice(tuple(chunk.offsets), tuple(chunk.sizes)), sum(place[dim] for dim in replicas), copies
