"""Every code block of the README and of the documentation runs and gives the output that its page shows."""

import pytest
from blocks import ROOT, Runner, blocks_of, matches

PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_page(page, tmp_path):
    if not blocks_of(page.read_text(encoding="utf-8")):
        pytest.skip("it has no code")
    Runner(page, tmp_path).run()


def test_examples_are_shown_and_run():
    """Each small example is the file block of a page, which runs it."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    shown = {block.file for text in texts for block in blocks_of(text)}
    run = {name for name in shown if name and any(f" {name}" in text for text in texts)}
    assert {path.name for path in (ROOT / "examples").glob("*.py")} <= run


def test_outputs_are_compared():
    assert matches("a 0.4 s ... z\n", "a 12 s b\nc z")
    assert not matches("loss 0.4\n", "loss 0.5\n")
    assert not matches("", "anything")


def test_block_with_another_output_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="page.md:5"):
        Runner(page, tmp_path).run()


def test_progress_and_varying_numbers():
    run = "[1/2] trial 0 stopped (0.1 s): loss=3 | best loss=3 (trial 0)\n[2/2] trial 1 complete (1.0 s): loss=2\n"
    assert matches("[1/2] trial 1 stopped (7 s)\ndone\n", run + "done\n")
    assert not matches("[1/2] trial 1 stopped\n", "nothing\n")
    assert matches("best: trial 3, 0.25 of -1\n", "best: trial 11, 1.5e-03 of -2", varying=True)
    assert not matches("best: trial 3\n", "worst: trial 3", varying=True)
