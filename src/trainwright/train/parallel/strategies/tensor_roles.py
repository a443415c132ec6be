"""Finds the column-wise and row-wise linear layers of a transformer block, which divide or sum its features.

Linear layers of one module go by their names if all are names that models use for them (below). Otherwise the last of
two or more divides its input, and the others, which take the input of the module, divide their output. One that makes
three times what it takes, before one that takes as much, makes queries, keys and values.
"""

from dataclasses import dataclass

from torch import nn

__all__ = ["COLUMNS", "FUSED", "ROWS", "TensorGroup", "tensor_groups_of"]

FUSED = frozenset({"qkv", "qkv_proj", "c_attn", "Wqkv", "query_key_value", "in_proj", "to_qkv"})
"""Queries, keys and values in one layer: three times as many outputs as inputs."""
COLUMNS = FUSED | {
    *("q", "k", "v", "query", "key", "value", "q_proj", "k_proj", "v_proj", "to_q", "to_k", "to_v", "wq", "wk", "wv"),
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
    columns: dict[str, nn.Linear]
    row: str = ""
    fused: bool = False
    alone: bool = True
    """Whether the module does nothing else: then its input is made ready once for all its layers."""
    attention: str | None = None
    """Name of an `nn.MultiheadAttention`, which is such a group by itself."""


def tensor_groups_of(block: nn.Module) -> list[TensorGroup]:
    """Return the groups of a block, in the order of its modules; a layer shared with another module is left out."""
    found = []
    for parent in block.modules():
        if isinstance(parent, nn.MultiheadAttention):
            continue
        found += [
            TensorGroup(parent=parent, columns={}, attention=name)
            for name, child in parent.named_children()
            if isinstance(child, nn.MultiheadAttention)
        ]
        linears = {name: child for name, child in parent.named_children() if isinstance(child, nn.Linear)}
        if len(linears) > 1:
            found += _tensor_groups_among(parent, linears)
    return found


def _tensor_groups_among(parent: nn.Module, linears: dict[str, nn.Linear]) -> list[TensorGroup]:
    """Return the groups among the linear layers of one module, in order: columns up to a row."""
    named = all(name in COLUMNS | ROWS for name in linears)
    if not named:
        *first, last = linears
        roles = {**dict.fromkeys(first, "column"), last: "row"}
    else:
        roles = {name: "column" if name in COLUMNS else "row" for name in linears}
    rows = [name for name, role in roles.items() if role == "row"]
    others = sum(1 for _ in parent.children()) - len(linears)
    single = len(rows) == 1 and not _normalises_input(parent)
    found, columns = [], {}
    for name, layer in linears.items():
        if roles[name] == "column":
            columns[name] = layer
        elif columns and _fit_together(columns, layer):
            fused = _is_fused(columns, layer)
            found.append(TensorGroup(parent=parent, columns=columns, row=name, fused=fused, alone=single or not others))
            columns = {}
    return found


def _normalises_input(parent: nn.Module) -> bool:
    """Whether a module normalises what enters it, rather than heads: then it is a whole block."""
    widths = {child.in_features for child in parent.children() if isinstance(child, nn.Linear)}
    norms = [child for child in parent.children() if "Norm" in type(child).__name__]
    return any(parameter.numel() in widths for norm in norms for parameter in norm.parameters())


def _is_fused(columns: dict[str, nn.Linear], row: nn.Linear) -> bool:
    first, *others = columns.values()
    return not others and first.out_features == 3 * first.in_features == 3 * row.in_features


def _fit_together(columns: dict[str, nn.Linear], row: nn.Linear) -> bool:
    """Whether columns take one input, and the row what they make of it: of queries, keys and values the values."""
    first, *_ = columns.values()
    if _is_fused(columns, row):
        return True
    several = len(columns) > 1 or next(iter(columns)) not in FUSED
    alike = all(value.in_features == first.in_features for value in columns.values())
    return several and alike and any(item.out_features == row.in_features for item in columns.values())
