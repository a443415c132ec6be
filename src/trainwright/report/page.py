"""The page: sections of a report put together into one HTML text that needs nothing from a network.

A content security policy allows the page's own two scripts by their digests and nothing else, so that no text of a
study can become code even if it escaped its escaping.
"""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from trainwright.errors import MissingExtra
from trainwright.report.figures.figure import Figure
from trainwright.report.words import embedded_json, escape

__all__ = ["Section", "figure_html", "page_html"]

Section = tuple[str, str, str]
"""Id, heading and inner HTML."""


def page_html(*, title: str, header: str, sections: Sequence[Section], figures: Sequence[Figure], footer: str) -> str:
    """Return the whole page; `figures` are those whose places are in the sections."""
    style, script, plotly = _asset("page.css"), _asset("page.js"), _plotly_js() if figures else ""
    data = embedded_json([{"name": f.name, "data": f.data, "layout": f.layout} for f in figures])
    scripts = [plotly, script] if figures else []
    allowed = " ".join(f"'sha256-{_digest(text)}'" for text in scripts) or "'none'"
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
        f'<div class="scroll"><div class="plot" id="plot-{figure.name}" role="img" '
        f'aria-labelledby="title-{figure.name}" aria-describedby="caption-{figure.name}" '
        f'style="height:{figure.height}px{width}"></div></div>'
        f'<figcaption id="caption-{figure.name}">{figure.caption}</figcaption></figure>'
    )


def _asset(name: str) -> str:
    return resources.files("trainwright.report").joinpath("assets", name).read_text(encoding="utf-8")


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingExtra.of("the report", "plotly", "report") from None
    # Browsers read all ends of lines as "\n", and the digest is of what they read.
    return str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
