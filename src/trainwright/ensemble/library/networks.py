"""What a member's network says to a batch, as a prediction of its kind, checked as the kept ones were."""

from typing import TYPE_CHECKING

import numpy as np

from trainwright.ensemble.library.member import Member
from trainwright.ensemble.library.predictions import TOLERANCE
from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError

if TYPE_CHECKING:
    import torch

__all__ = ["apply_link", "check_outputs", "predict_member", "shape_outputs"]


def predict_member(
    network: "torch.nn.Module", x: "Array | torch.Tensor", member: Member, *, batch_rows: int, device: str
) -> Array:
    """Return predictions [N, C], [N, T] or [N, T, 2] in float64 for a batch x [N, ...], computed in parts."""
    import torch

    if batch_rows < 1:
        raise EnsembleError(f"Ensemble.predict, batch_rows: got {batch_rows}; allowed: an integer >= 1")
    if not isinstance(x, torch.Tensor | np.ndarray):
        raise EnsembleError(f"Ensemble.predict: got {type(x).__name__}; allowed: a numpy array or a torch tensor")
    if x.ndim == 0 or len(x) == 0:
        raise EnsembleError(f"Ensemble.predict: got shape {tuple(x.shape)}; allowed: a batch of at least one row")
    batch = torch.as_tensor(x)
    # numpy's default float64 is rarely the network's type.
    first = next(network.parameters(), None)
    if batch.is_floating_point() and first is not None:
        batch = batch.to(first.dtype)  # numpy's float64 is hardly ever the network's
    network.to(device)
    with torch.no_grad():
        parts = [apply_link(network(part.to(device)), member.link).cpu() for part in batch.split(batch_rows)]
    return check_outputs(shape_outputs(torch.cat(parts).double().numpy(), member.output), member)


def apply_link(output: "torch.Tensor", link: str) -> "torch.Tensor":
    """Return what a network's output predicts: probabilities in float64 for "softmax", itself for "identity"."""
    return output.double().softmax(1) if link == "softmax" else output


def shape_outputs(found: Array, output: str) -> Array:
    """Return values [N] as [N, 1] and moments [N, 2] as [N, 1, 2]; others as they are."""
    if output == "moments":
        return found[:, None, :] if found.ndim == 2 else found
    return found[:, None] if output == "values" and found.ndim == 1 else found


def check_outputs(found: Array, member: Member) -> Array:
    """Return a member's predictions, probabilities summing to 1, or raise EnsembleError naming the first bad row."""
    # The same checks as for kept predictions, so that a network cannot predict what `leave` would refuse.
    wrong = ~np.isfinite(found).reshape(len(found), -1).all(axis=1)
    why = "is not finite"
    if member.output == "moments" and not wrong.any():
        wrong, why = (found[..., 1] <= 0).any(axis=1), "has a variance that is not above 0"
    if member.output == "classes" and not wrong.any():
        wrong = (found < 0).any(axis=1) | (np.abs(found.sum(axis=1) - 1.0) > TOLERANCE)
        why = "is no row of probabilities; leave with link='softmax' if the network gives logits"
    if wrong.any():
        raise EnsembleError(f"Ensemble.predict: row {int(wrong.argmax())} of trial {member.trial} {why}")
    return found / found.sum(axis=1, keepdims=True) if member.output == "classes" else found
