"""The table of records on the page about the ledger: made from the table by which records are made and checked.

python tests/docs/kinds_table.py    writes it into the page
"""

import re
from pathlib import Path

from trainwright.ledger.fields import Optional
from trainwright.ledger.kinds import KINDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "ledger.md"
TABLE = re.compile(r"^\| kind \| says \|.*?\n(?!\|)", re.MULTILINE | re.DOTALL)


def table():
    """Return the table as Markdown."""
    lines = ["| kind | says | body |", "|---|---|---|"]
    for name, kind in KINDS.items():
        fields = "; ".join(described(field) for field in kind.body.fields)
        lines.append(f"| `{name}` | {kind.says} | {fields} |")
    return "\n".join(lines) + "\n"


def described(field):
    """Return one field: its name, its type, what it says."""
    missing = "" if field.required else ", may be missing"
    kind = f"{field.type.of.text} or null" if isinstance(field.type, Optional) else field.type.text
    return f"`{field.name}` ({kind.replace('|', '/')}{missing}): {field.says}"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda _: table(), page), encoding="utf-8")
