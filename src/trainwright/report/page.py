"""The page: sections of a report put together into one HTML text that needs nothing from a network.

A content security policy allows the page's own script by its digest and nothing else, so that no text of a
study can become code even if it escaped its escaping.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources

from trainwright.report.figures.figure import Figure
from trainwright.report.formatting import embedded_json, escape

__all__ = ["Section", "figure_html", "page_html"]

Section = tuple[str, str, str]
"""Id, heading and inner HTML."""

_MODULES = ("pens.js", "scales.js", "chart.js", "page.js")


def page_html(*, title: str, header: str, sections: Sequence[Section], figures: Sequence[Figure], footer: str) -> str:
    """Return the whole page; `figures` are those whose places are in the sections."""
    # A page without figures carries no script at all.
    style, scripts = _read_asset("page.css"), [_bundle_scripts(*_MODULES)] if figures else []
    data = embedded_json([asdict(figure) for figure in figures])
    # Scripts are allowed by their digest, so that no text of the study can run even if its escaping failed.
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, heading, _ in sections)
    body = "\n".join(
        f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{heading}</h2>\n{inner}</section>'
        for name, heading, inner in sections
    )
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            f'<header>{header}<nav aria-label="Sections">{links}</nav></header>',
            f"<main>{body}</main>",
            f"<footer>{footer}</footer>",
            f'<script type="application/json" id="figures">{data}</script>',
            *(f"<script>{text}</script>" for text in scripts),
            "</body>",
            "</html>",
            "",
        ]
    )


def figure_html(figure: Figure, *, alone: bool = False) -> str:
    """Return the place of a figure, with title and caption; its drawing is the script's.

    The title of a figure that is `alone` in its section is for screen readers only, as the heading says the same.
    """
    hidden = ' class="unseen"' if alone else ""
    width = f";min-width:{figure.least_width}px" if figure.least_width else ""
    return (
        f'<figure aria-labelledby="title-{figure.name}"><h3 id="title-{figure.name}"{hidden}>{figure.title}</h3>'
        f'<div class="scroll"><div class="plot" id="plot-{figure.name}" '
        f'aria-labelledby="title-{figure.name}" aria-describedby="caption-{figure.name}" '
        f'style="height:{figure.height}px{width}"></div></div>'
        f'<figcaption id="caption-{figure.name}">{figure.caption}</figcaption></figure>'
    )


def _read_asset(name: str) -> str:
    return resources.files("trainwright.report").joinpath("assets", name).read_text(encoding="utf-8")


def _bundle_scripts(*names: str) -> str:
    """Return modules as one script: each after those that it imports, so that a file needs no other."""
    text = "\n".join(_read_asset(name) for name in names)
    # Imports and exports have no meaning in one script.
    alone = re.sub(r"^import .*;\n", "", text, flags=re.MULTILINE)
    script = re.sub(r"^export (?=const|class|function)", "", alone, flags=re.MULTILINE)
    return f'(() => {{\n"use strict";\n{script}\n}})();'
