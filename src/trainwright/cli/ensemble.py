"""`trainwright ensemble DIR`: library, front, pick, calibration, report, export."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from trainwright.cli.command import Option, Result, StudyFolder, options_of
from trainwright.cli.workflow.ensemble import ENSEMBLE_PAGE, describe_choice, show_choice
from trainwright.ensemble.ensemble_settings import EnsembleSettings, StoredSettings
from trainwright.ensemble.library.library import Library
from trainwright.report.html import write_ensemble_page

__all__ = ["ensemble"]

_TRIED_PAGE = "ensemble-tried.html"


@options_of(EnsembleSettings)
def ensemble(
    directory: StudyFolder,
    *,
    changes: dict[str, Any],
    out: Annotated[Path | None, Option(help="Export the ensemble into this new folder.")] = None,
    self_contained: Annotated[
        bool, Option("--self-contained", help="Export networks too, so that loading needs no factory.")
    ] = False,
    html: Annotated[Path | None, Option(help="File for the pictures [DIR/ensemble.html].")] = None,
) -> Result:
    """Select an ensemble from the models of a study, calibrate it, and say how good it is and what it costs.

    What is not given is as it was when the study's ensemble was chosen: by `trainwright run` with [ensemble], or else
    by this command. It is kept for the report and the live page, which show the same ensemble, unless it is only to
    be looked at: with --html, or other than a run chose (then the pictures go to DIR/ensemble-tried.html).
    """
    # Start from the stored settings, so that command, report, page and status choose the same ensemble.
    stored = StoredSettings.read(directory)
    settings = replace(StoredSettings.settings_of(directory), **changes)
    choice = settings.choose(Library.open(directory))
    # An ensemble that a run chose and exported must not be replaced by a look at another.
    tried = stored is not None and stored.by_run and stored.settings != settings
    page = write_ensemble_page(choice, html or directory / (_TRIED_PAGE if tried else ENSEMBLE_PAGE))
    if html is None and not tried:
        StoredSettings(settings=settings, by_run=stored is not None and stored.by_run).write(directory)
    exported = None if out is None else str(choice.ensemble.save(out, self_contained=self_contained))
    protection = choice.front.protection
    warnings = list(protection.warnings)
    # The search chose by these rows, so they flatter whatever it found.
    if choice.library.rows_seen_by_search:
        warnings.append(
            "the models left validation rows alone, which steered the search: 60 % of them select, 20 % calibrate and "
            "20 % judge; every loss here is too good"
        )
    if len(choice.library.members) == 1:
        warnings.append("there is one model, which is an ensemble of one: its epistemic uncertainty is 0")
    content = {
        **describe_choice(choice),
        "cross_validated": {
            name: {**asdict(one), "corrected_loss": one.corrected} for name, one in protection.checked.items()
        },
        "fallback": {"choice": protection.chosen, "reason": protection.reason},
        "warnings": warnings,
        "page": str(page),
        "export": exported,
    }
    show_choice(content)
    print(f"cross-validated: {protection.reason}")
    return Result(content)
