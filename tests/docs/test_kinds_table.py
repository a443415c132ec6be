"""The page about the ledger shows the very table by which records are made and checked."""

from kinds_table import PAGE, TABLE, table


def test_the_page_shows_the_table():
    (found,) = TABLE.findall(PAGE.read_text(encoding="utf-8"))
    assert found == table(), "python tests/docs/kinds_table.py"
