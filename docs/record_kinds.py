"""The table of the ledger's records, made from the table by which records are made and checked."""

from trainwright.ledger.fields import Field
from trainwright.ledger.kinds import KINDS


def kinds_table() -> str:
    """Return the table as Markdown."""
    lines = ["| kind | says | body |", "|---|---|---|"]
    for name, kind in KINDS.items():
        fields = "; ".join(_describe(field) for field in kind.body.fields)
        lines.append(f"| `{name}` | {kind.says} | {fields} |")
    return "\n".join(lines) + "\n"


def _describe(field: Field) -> str:
    missing = "" if field.required else ", may be missing"
    kind = field.type.text.replace(", or null", " or null")
    return f"`{field.name}` ({kind.replace('|', '/')}{missing}): {field.says}"
