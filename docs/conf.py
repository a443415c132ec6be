"""Sphinx settings: Markdown through MyST, the furo theme, the reference from docstrings, nothing from a network."""
# ruff: noqa: ANN001 -- Sphinx fixes the arguments of its hooks

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Never

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.utils.math.latex2mathml import tex2mathml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from command_help import command_helps
from object_lists import expand_objects
from record_kinds import kinds_table

import trainwright

project = "Trainwright"
copyright = "the Trainwright authors, Apache-2.0"  # noqa: A001 -- Sphinx's own name
release = trainwright.__version__
language = "en_GB"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Trainwright {release}"
html_static_path = ["_static"]
html_css_files = ["page.css"]
html_math_renderer = "mathml"
html_show_sphinx = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_preserve_defaults = True  # as written: a default such as os.environ would show the environment of the build
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
default_role = "code"  # docstrings are written with single backticks


def _settings(_app, what, _name, object_, _options, lines) -> None:
    """Add the comments behind the fields of a dataclass as descriptions of its arguments."""
    if what != "class" or not dataclasses.is_dataclass(object_):
        return
    source = inspect.getsource(object_)
    found = re.findall(r"^    (\w+): .*?  # (?!noqa|type:)(.+)$", source, re.MULTILINE)
    lines += ["", *(f":param {name}: {comment}" for name, comment in found if not name.startswith("_"))]


def _signature(_app, _what, _name, object_, _options, _signature, _returns) -> tuple[str, None] | None:
    """Leave out the signature of a protocol, which nobody calls."""
    return ("", None) if getattr(object_, "_is_protocol", False) else None


def _plain(_app, _what, _name, _object, _options, lines) -> None:
    """Escape what only looks like markup in a docstring: stars, bars and closing underscores outside of code."""
    for number, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        lines[number] = "".join(
            part if part.startswith("`") else re.sub(r"([*|]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts
        )


class CommandHelp(Directive):
    """Show the help of every command under a heading of its own."""

    def run(self) -> list[nodes.Node]:
        """Return a heading and a literal block for each command."""
        shown: list[nodes.Node] = []
        for command, text in command_helps():
            shown += [nodes.rubric(text=command), nodes.literal_block(text, text, language="text")]
        return shown


def _fill_in(_app, _docname, source) -> None:
    """Put the table of the ledger's records and the lists of names where a page asks for them."""
    source[0] = expand_objects(source[0].replace("<!-- record kinds -->", kinds_table()))


def _formula(translator, node) -> Never:
    translator.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app) -> dict[str, bool]:
    """Register the help of commands, and formulas as MathML, which browsers draw without a script."""
    app.add_directive("command-help", CommandHelp)
    app.add_html_math_renderer("mathml", (_formula, None), (_formula, None))
    app.connect("source-read", _fill_in)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _settings)
    app.connect("autodoc-process-docstring", _plain)
    return {"parallel_read_safe": True}
