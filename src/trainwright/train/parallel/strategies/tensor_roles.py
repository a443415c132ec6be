"""Finds the column-wise and row-wise linear layers of a transformer block, which divide or sum its features.

Linear layers of one module go by their names if all are names that models use for them (below). Otherwise the last of
two or more divides its input, and the others, which take the input of the module, divide their output. One that makes
three times what it takes, before one that takes as much, makes queries, keys and values. Columns without such a row in
their module have it in a later one, the next that takes what they make.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

__all__ = ["COLUMNS", "FUSED", "ROWS", "TensorGroup", "is_transposed", "outputs_of", "tensor_groups_of"]

BY_HEADS = frozenset({"query_key_value"})
"""Queries, keys and values in one layer, one head after the other."""
FUSED = BY_HEADS | {"qkv", "qkv_proj", "c_attn", "Wqkv", "in_proj", "to_qkv"}
"""Queries, keys and values in one layer: three times as many outputs as inputs."""
COLUMNS = FUSED | {
    *("q", "k", "v", "query", "key", "value", "q_proj", "k_proj", "v_proj", "to_q", "to_k", "to_v", "wq", "wk", "wv"),
    *("query_proj", "key_proj", "value_proj"),
    *("up", "gate", "up_proj", "gate_proj", "fc1", "linear1", "lin1", "w1", "w3", "c_fc", "fc_in", "dense_h_to_4h"),
}
ROWS = frozenset(
    {
        *("o", "out", "o_proj", "out_proj", "to_out", "wo", "proj", "c_proj", "dense_4h_to_h"),
        *("down", "down_proj", "fc2", "linear2", "lin2", "w2", "fc_out"),
    }
)


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Layers that divide features, what is done to the parts, and the layer that sums them."""

    parent: nn.Module
    columns: dict[str, Any]
    row: Any = None
    fused: bool = False
    attention: str | None = None
    """Name of an `nn.MultiheadAttention`, which is such a group by itself."""


def is_transposed(layer: nn.Module) -> bool:
    """Whether a layer is one of transformers' that are linear with a weight of (inputs, outputs)."""
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")


def outputs_of(layer: Any) -> int:
    """Return how many features a linear layer makes."""
    return int(layer.weight.shape[int(is_transposed(layer))])


def _inputs_of(layer: Any) -> int:
    return int(layer.weight.shape[int(not is_transposed(layer))])


def tensor_groups_of(block: nn.Module) -> list[TensorGroup]:
    """Return the groups of a block, in the order of its modules; a layer shared with another module is left out."""
    found: list[TensorGroup] = []
    # Columns whose row comes in a later module.
    waiting: tuple[nn.Module, dict[str, Any]] | None = None
    for parent in block.modules():
        if isinstance(parent, nn.MultiheadAttention):
            continue
        found += [
            TensorGroup(parent=parent, columns={}, attention=name)
            for name, child in parent.named_children()
            if isinstance(child, nn.MultiheadAttention)
        ]
        linears = {
            name: child
            for name, child in parent.named_children()
            if isinstance(child, nn.Linear) or is_transposed(child)
        }
        within = _tensor_groups_among(parent, linears) if len(linears) > 1 else []
        found += within
        if within or not linears:
            continue
        if waiting is not None and len(linears) == 1 and _fit_together(waiting[1], row := next(iter(linears.values()))):
            found.append(TensorGroup(parent=waiting[0], columns=waiting[1], row=row, fused=_is_fused(waiting[1], row)))
            waiting = None
        elif all(name in COLUMNS or outputs_of(layer) > _inputs_of(layer) for name, layer in linears.items()):
            waiting = parent, linears
    return found


def _tensor_groups_among(parent: nn.Module, linears: dict[str, Any]) -> list[TensorGroup]:
    """Return the groups among the linear layers of one module, in order: columns up to a row."""
    named = all(name in COLUMNS | ROWS for name in linears)
    if not named:
        *first, last = linears
        roles = {**dict.fromkeys(first, "column"), last: "row"}
    else:
        roles = {name: "column" if name in COLUMNS else "row" for name in linears}
    found, columns = [], {}
    for name, layer in linears.items():
        if roles[name] == "column":
            columns[name] = layer
        elif columns and _fit_together(columns, layer):
            found.append(TensorGroup(parent=parent, columns=columns, row=layer, fused=_is_fused(columns, layer)))
            columns = {}
    return found


def _is_fused(columns: dict[str, Any], row: Any) -> bool:
    (name, first), *others = columns.items()
    thirds = outputs_of(first) == 3 * _inputs_of(first) == 3 * _inputs_of(row)
    return not others and thirds and name not in BY_HEADS


def _fit_together(columns: dict[str, Any], row: Any) -> bool:
    """Whether columns take one input, and the row what they make of it: of queries, keys and values the values."""
    (name, first), *_ = columns.items()
    if _is_fused(columns, row) or (name in BY_HEADS and outputs_of(first) > _inputs_of(row)):
        return True
    several = len(columns) > 1 or name not in FUSED
    alike = all(_inputs_of(value) == _inputs_of(first) for value in columns.values())
    return several and alike and any(outputs_of(item) == _inputs_of(row) for item in columns.values())
