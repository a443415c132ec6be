"""Every link of a page leads to a file and a heading that exist, and every example named in a guide is there."""

import re
import subprocess
import tomllib

import pytest
from blocks import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts),
]
DEFINITION = ROOT / "examples" / "hpc" / "trainwright.def"


def read_text(page):
    """Return a page without its blocks of code, whose brackets are no links."""
    return re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page):
    """Return the anchors of a page's headings, as GitHub and MyST make them, and those set by hand."""
    text = read_text(page)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain} | set(
        re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"`[^`\n]*`", "", read_text(page))
    targets = re.findall(r"\]\(([^)\s]+)\)|^\[[^]]+\]: (\S+)$", text, re.MULTILINE)
    for target in (one or other for one, other in targets):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor in anchors_of(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_named_exist(page):
    for name in re.findall(r"`(examples/[\w./-]+)`", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


def test_the_image_installs_what_the_project_offers():
    """Bash reads the sections that are scripts, and the extras are the project's."""
    text = DEFINITION.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", text, re.MULTILINE | re.DOTALL))
    for name in ("post", "environment", "test", "runscript"):
        subprocess.run(["bash", "-n"], input=sections[name], text=True, check=True)  # noqa: S607  bash is on the path
    wanted = re.search(r"trainwright\[([\w,]+)\]", sections["post"])[1].split(",")
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(wanted) <= set(offered)
