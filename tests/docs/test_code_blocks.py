"""Every code block of the README and of the documentation runs and gives the output that its page shows."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from blocks import ROOT, blocks_of, main, matches

TEXTS = {
    page: page.read_text(encoding="utf-8")
    for page in [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)]
}
PAGES = [page for page, text in TEXTS.items() if blocks_of(text)]
# Pages that start many processes, each of which loads torch: most of the pages' time. What they name is checked by
# test_names_of_pages.py, what they tell by the tests that stand beside them here, and they run in `make test-all`.
SLOW = {
    "extending.md": "test kits: every class of the package goes through them",
    "checkpoints.md": "tests/checkpoint, tests/cli/test_checkpoint_command.py",
    "elastic.md": "tests/study/test_resizing.py, tests/train/test_elastic.py",
    "ensembles.md": "tests/ensemble, tests/test_examples.py",
    "gallery.md": "tests/cli/test_figure_command.py",
    "get-started.md": "README.md, tests/test_projects.py, and the pages that it leads to",
    "hpc.md": "tests/study/test_workers.py",
    "interop.md": "tests/report/test_exports.py, tests/search/test_optuna_searcher.py, tests/space/test_configspace.py",
    "loader.md": "tests/train/test_loader.py, tests/train/test_streaming.py",
    "memory.md": "tests/plan/memory, tests/cli/test_memory_command.py",
    "parallel.md": "tests/train/parallel",
    "ray.md": "tests/engine/test_ray.py",
    "resume.md": "tests/study/test_resume.py, tests/study/test_faults.py",
    "serving.md": "tests/serve, tests/cli/test_serve_command.py",
    "study-files.md": "tests/cli/test_study_files.py, tests/cli/test_commands.py",
    "workers.md": "tests/study/test_workers.py",
    "workflow.md": "tests/cli/test_workflow.py",
}
NEEDS = {
    "ray.md": ("ray",),
    "parallel.md": ("transformers",),
    "interop.md": ("mlflow", "tensorboard"),
}  # beyond what the tests' set-up installs


@pytest.fixture(scope="session")
def checks(request):
    """Run the pages that are to be tested two at a time, each in a process of its own: they mostly wait for imports."""
    tests = [item for item in request.session.items if item.name.startswith("test_blocks_of_page[")]
    pages = [test.callspec.params["page"] for test in tests]
    with ThreadPoolExecutor(2) as pool:
        if "PYTEST_XDIST_WORKER" in os.environ:  # several such sessions share the pages: each runs what it is asked for
            yield lambda page: pool.submit(check, page).result()
        else:
            running = {page: pool.submit(check, page) for page in pages}
            yield lambda page: running[page].result()


def check(page):
    command = [sys.executable, str(ROOT / "tests" / "docs" / "blocks.py"), "--check", str(page)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page.name in SLOW)) for page in PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_blocks_of_page(page, checks):
    for module in NEEDS.get(page.name, ()):
        pytest.importorskip(module)
    done = checks(page)
    assert done.returncode == 0, done.stderr


def test_examples_are_shown_and_run():
    """Each small example is the file block of a page, which runs it."""
    for example in sorted((ROOT / "examples").glob("*.*")):
        shown = [text for text in TEXTS.values() if example.name in {block.file for block in blocks_of(text)}]
        commands = (f"$ python {example.name}", f"$ trainwright run {example.name}")
        assert any(command in text for text in shown for command in commands), example


def test_slow_pages_are_there():
    assert {page.name for page in PAGES} >= set(SLOW)


def test_file_blocks_are_the_examples():
    """Also on pages that only `make test-all` runs: a file block that examples/ has is that file."""
    for page, text in TEXTS.items():
        for block in blocks_of(text):
            if block.file is not None and (example := ROOT / "examples" / block.file).is_file():
                assert block.body == example.read_text(encoding="utf-8"), (page, block.line)


def test_outputs_are_compared():
    assert matches("a 0.4 s ... z\n", "a 12 s b\nc z")
    assert not matches("loss 0.4\n", "loss 0.5\n")
    assert not matches("", "anything")


def test_block_with_another_output_fails(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n", encoding="utf-8")
    assert main(["--check", str(page)]) == 1
    assert "page.md:5" in capsys.readouterr().err
    assert main([str(page)]) == 0
    assert page.read_text(encoding="utf-8") == "```python\nprint(1)\n```\n\n```text\n1\n```\n"


def test_progress_and_varying_numbers():
    run = "[1/2] trial 0 stopped (0.1 s): loss=3 | best loss=3 (trial 0)\n[2/2] trial 1 complete (1.0 s): loss=2\n"
    assert matches("[1/2] trial 1 stopped (7 s)\ndone\n", run + "done\n")
    assert matches("[1/2] trial 1 stopped (7 s)\n...\n[2/2] trial 3 failed\ndone\n", run + "done\n")
    assert not matches("[1/2] trial 1 stopped\n", "nothing\n")
    assert matches("best: trial 3, 0.25 of -1\n", "best: trial 11, 1.5e-03 of -2", varying=True)
    assert matches("trials [3] cost 1,200\n", "trials [3, 11] cost 90", varying=True)
    assert not matches("best: trial 3\n", "worst: trial 3", varying=True)
