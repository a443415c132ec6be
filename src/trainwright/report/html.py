"""Writes the report of a study (report.html), and the page of an ensemble: one self-contained HTML file each.

A content security policy allows the page's own script by its digest and nothing else, so that no text of a study can
become code even if it escaped its escaping.
"""

import base64
import hashlib
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path

from trainwright.ensemble.ensemble_settings import ChosenEnsemble
from trainwright.ledger import Status, open_ledger, state_of
from trainwright.ledger.writers import under_way
from trainwright.report import tables
from trainwright.report.figures.ensembles import ensemble_front
from trainwright.report.figures.figure import Figure
from trainwright.report.figures.groups import GROUPS, DrawnGroup, FigureGroup, FigureSource
from trainwright.report.files import target, write
from trainwright.report.formatting import DASH, count, date, duration, embedded_json, escape, number
from trainwright.report.overview import Overview

__all__ = ["Section", "figure_html", "page_html", "write_ensemble_page", "write_report"]

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


def write_report(directory: str | Path, path: str | Path | None = None) -> Path:
    """Write the report of the study in `directory` to `path` (by default report.html in it) and return where it is.

    An earlier report is replaced as a whole.
    """
    directory = Path(directory)
    ledger = open_ledger(directory)
    where = target(directory, directory / "report.html" if path is None else path, (".html", ".htm"))
    state, dropped, name = state_of(ledger), ledger.dropped(), directory.resolve().name
    overview = Overview(state, under_way(ledger, state))
    sections: list[Section] = [("best", "Best trials", tables.best_trials(overview))]
    figures: list[Figure] = []
    source = FigureSource(overview, directory)
    for group_name, group in GROUPS.items():
        drawn = group.draw(source)
        figures.extend(drawn.figures)
        sections.append((group_name, group.heading, _group_html(group, drawn)))
    sections += [
        ("failures", "Failures", _wrap_card(tables.failures(overview))),
        ("dropped", "Records dropped", _wrap_card(tables.dropped_records(dropped, state.unknown_kinds))),
    ]
    page = page_html(
        title=f"{name} {DASH} Trainwright",
        header=header_html(overview, name=name, directory=directory, dropped=len(dropped)),
        sections=[section for section in sections if section[2]],
        figures=figures,
        footer=footer_html(overview, study_id=ledger.study_id, now=time.time()),
    )
    write(where, page)
    return where


def write_ensemble_page(chosen: ChosenEnsemble, path: str | Path) -> Path:
    """Write the page of an ensemble and the front that it is from as one self-contained HTML file; returns its path.

    An earlier page is replaced as a whole.
    """
    where, report = Path(path), chosen.report
    front = [ensemble_front(chosen)]
    cost = f'<p class="soft">{escape(report.cost)}</p>' if report.cost else ""
    page = page_html(
        title="Ensemble",
        header=f"<h1>Ensemble of {len(chosen.ensemble.members)} from {len(chosen.library.members)} models</h1>{cost}",
        sections=[
            ("front", "Loss against cost", "\n".join(figure_html(one, alone=len(front) == 1) for one in front)),
            ("members", "The ensemble", tables.pick(chosen)),
        ],
        figures=front,
        footer="",
    )
    write(where, page)
    return where


def _group_html(group: FigureGroup, drawn: DrawnGroup) -> str:
    """Return the inner HTML of a section, "" for one that has nothing to show."""
    texts = [figure_html(figure, alone=len(drawn.figures) == 1) for figure in drawn.figures]
    if group.paired:
        # Two figures side by side, in the order of the list.
        pairs = ["\n".join(texts[at : at + 2]) for at in range(0, len(texts), 2)]
        texts = [f'<div class="pair">{pair}</div>' for pair in pairs]
    notes = "".join(f'<p class="card soft">{escape(note)}</p>' for note in drawn.notes)
    return "\n".join(texts) + ("" if drawn.ensemble is None else tables.pick(drawn.ensemble)) + notes


def _wrap_card(inner: str) -> str:
    return f'<div class="card">{inner}</div>' if inner else ""


def header_html(overview: Overview, *, name: str, directory: Path, dropped: int) -> str:
    """Return the study's name, objectives, counts by state, facts and the way on."""
    goals = ", ".join(f"<code>{escape(objective)}</code>" for objective in overview.objectives)
    limits = ", ".join(f"<code>{escape(constraint)}</code>" for constraint in overview.state.constraints)
    goals += f", with {limits}" if limits else ""
    states = "".join(f'<li class="{word}">{many:,} {word}</li>' for word, many in overview.counts.items())
    facts = "".join(
        f"<div><dt>{what}</dt><dd>{value}<small>{more}</small></dd></div>"
        for what, value, more in _list_facts(overview)
    )
    lost = f'{count(dropped, "piece")} of the records could not be read: <a href="#dropped">which</a>.'
    warning = f'<p class="go-on">{lost}</p>' if dropped else ""
    return (
        f'<p class="eyebrow">Trainwright report</p><h1>{escape(name)}</h1><p class="soft">{goals}</p>'
        f'<ul class="counts" aria-label="Trials by state">{states or "<li>no trial yet</li>"}</ul>'
        f'<dl class="facts">{facts}</dl>{warning}{_way_on(overview, directory)}'
    )


def footer_html(overview: Overview, *, study_id: str, now: float) -> str:
    """Return the study's identity, the versions that made it and when this page was written."""
    versions = ", ".join(f"{escape(name)} {escape(of)}" for name, of in sorted(overview.state.versions.items()))
    parts = [
        f"Study <code>{escape(study_id)}</code>" if study_id else "",
        f"seed {overview.state.seed}",
        versions,
        f"written {date(now)}",
    ]
    return "<p>" + " · ".join(part for part in parts if part) + "</p>"


def _list_facts(overview: Overview) -> list[tuple[str, str, str]]:
    facts: list[tuple[str, str, str]] = []
    best = overview.best
    if best is not None and len(overview.objectives) == 1:
        value = number(float(overview.values[overview.ranking[0], 0]))
        facts.append((f"best {escape(overview.objectives[0].metric, 30)}", value, f"trial {best.number}"))
    elif best is not None:
        facts.append(("on the front", f"{len(overview.front):,}", f"of {count(len(overview.results), 'result')}"))
    if overview.limits and len(overview.results):
        feasible = int(overview.within[overview.results].sum())
        facts.append(
            ("feasible", f"{feasible:,}" if feasible else "none", f"of {count(len(overview.results), 'result')}")
        )
    facts.append(("trials", f"{len(overview.trials):,}", f"{overview.state.results:,} with a result"))
    epochs = sum(len(trial.reports) for trial in overview.trials)
    if epochs:
        facts.append(("epochs", f"{epochs:,}", f"longest trial {overview.epochs:,}"))
    if overview.clock.total > 0:
        breaks = len(overview.clock.breaks)
        facts.append(("time", duration(overview.clock.total), f"in {breaks + 1} sessions" if breaks else "wall time"))
        facts.append(("device time", duration(overview.state.device_seconds), "all devices together"))
    if overview.state.created_at:
        facts.append(("begun", date(overview.state.created_at)[:10], date(overview.state.created_at)[11:]))
    return facts


def _way_on(overview: Overview, directory: Path) -> str:
    # Lost trials count too: the next run continues them.
    under_way = overview.count(Status.PROPOSED, Status.RUNNING, Status.LOST)
    still = f"{count(under_way, 'trial')} {'is' if under_way == 1 else 'are'} not finished. " if under_way else ""
    # The study's own note says how it was started, which is how to continue it.
    commands = [
        value for _, name, value in overview.state.notes.values() if name == "resume" and isinstance(value, str)
    ]
    options = commands[-1] if commands else ""
    place = shlex.quote(str(directory))
    how = (
        f"To go on: <code>{escape(options)}</code>."
        if options
        else "To go on, start the study again as before: ended trials are kept, others go on from their checkpoints."
    )
    return f'<p class="go-on">{still}{how} How it stands: <code>trainwright status {escape(place)}</code></p>'
