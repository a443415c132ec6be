"""`trainwright ensemble DIR`: library, front, pick, calibration, report, export."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwright.cli.command import Result
from trainwright.cli.formatting import print_table, size
from trainwright.cli.options import StudyFolder, options_of
from trainwright.ensemble.ensemble_settings import ChosenEnsemble, EnsembleSettings, StoredSettings
from trainwright.ensemble.library.library import Library
from trainwright.ensemble.metrics import METRICS
from trainwright.report.html import write_ensemble_page

__all__ = ["ensemble"]

_PAGE, _TRIED_PAGE = "ensemble.html", "ensemble-tried.html"
_POINTS = 12  # of the front that are shown


@options_of(EnsembleSettings)
def ensemble(
    directory: StudyFolder,
    *,
    changes: dict[str, Any],
    out: Annotated[Path | None, typer.Option(help="Export the ensemble into this new folder.")] = None,
    self_contained: Annotated[
        bool, typer.Option("--self-contained", help="Export networks too, so that loading needs no factory.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Where the pictures go, to look alone; see above [DIR/ensemble.html].")
    ] = None,
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
    page = write_ensemble_page(choice, html or directory / (_TRIED_PAGE if tried else _PAGE))
    if html is None and not tried:
        StoredSettings(settings=settings, by_run=stored is not None and stored.by_run).write(directory)
    exported = None if out is None else choice.ensemble.save(out, self_contained=self_contained)

    content = _collect_content(choice) | {"page": str(page), "export": None if exported is None else str(exported)}
    _show_content(content)
    return Result(content)


def _collect_content(choice: ChosenEnsemble) -> dict[str, Any]:
    """Return what the command says, as JSON."""
    front, report, settings = choice.front, choice.report, choice.settings
    # Evenly along the front, from the least loss on.
    points = [asdict(point) for point in front.points[:: -(-len(front.points) // _POINTS)]]
    protection = front.protection
    single = front.single_best
    # Without test rows nothing here is judged on rows that chose nothing.
    test = report.rows if report.rows in single.members[0].splits else None
    return {
        "metric": front.metric,
        "split": front.split,
        "models": len(choice.library.members),
        "excluded": front.excluded,
        "front": points,
        "pick": {"how": settings.pick, **report.to_json()},
        "baselines": {
            name: {
                **asdict(point),
                f"{report.rows}_loss": None if test is None else _loss_of(front, front.ensemble(point), test),
            }
            for name, point in front.baselines.items()
        },
        "single_best": {
            "trial": single.members[0].trial,
            "loss": front.baselines["single best"].loss,
            f"{report.rows}_loss": None if test is None else _loss_of(front, single, test),
        },
        "cross_validated": {
            name: {**asdict(one), "corrected_loss": one.corrected} for name, one in protection.checked.items()
        },
        "fallback": {"choice": protection.chosen, "reason": protection.reason},
        "warnings": [*protection.warnings, *_list_warnings(choice.library)],
    }


def _list_warnings(library: Any) -> list[str]:
    found = []
    # The search chose by these rows, so they flatter whatever it found.
    if library.rows_seen_by_search:
        found.append(
            "the models left validation rows alone, which steered the search: 60 % of them select, 20 % calibrate and "
            "20 % judge; every loss here is too good"
        )
    if len(library.members) == 1:
        found.append("there is one model, which is an ensemble of one: its epistemic uncertainty is 0")
    return found


def _loss_of(front: Any, ensemble: Any, split: str) -> float:
    return float(METRICS[front.metric].loss(ensemble.score(split, front.metric)))


def _show_content(content: dict[str, Any]) -> None:
    pick, split = content["pick"], content["split"]
    metric = pick["metric"].replace("_", " ")
    print(f"{content['models']} models, selected by {content['metric'].replace('_', ' ')} on {split} rows\n")
    header = ("members", f"{split} loss", "us per row", "weights", "trials")
    rows = [
        (
            len(point["members"]),
            f"{point['loss']:.4f}",
            _microseconds(point["seconds_per_row"]),
            "unknown" if point["bytes"] is None else size(point["bytes"]),
            ", ".join(map(str, point["members"])),
        )
        for point in content["front"]
    ]
    print_table(header, rows)
    _show_baselines(content)
    print(f"\nthe pick ({pick['how']}), {pick['rule']}:")
    members = [
        (
            row["trial"],
            f"{row['weight']:.0%}",
            _format_loss(row["loss"]),
            _format_loss(row["gain"]),
            _microseconds(row["seconds_per_row"]),
        )
        for row in pick["members"]
    ]
    print_table(("trial", "weight", f"{split} loss", "gain", "us per row"), members)
    for name, loss in sorted(pick["losses"].items()):
        print(f"{name} {metric}: {loss:.4f}")
    _show_judged(pick)
    print(f"cross-validated: {content['fallback']['reason']}")
    for warning in content["warnings"]:
        print(f"warning: {warning}")
    if pick["cost"]:
        print(f"cost: {pick['cost']}")
    print(f"pictures: {content['page']}")
    if content["export"]:
        print(f"exported: {content['export']}")


def _show_baselines(content: dict[str, Any]) -> None:
    """Print what the pick is compared with; of the top-k the one of least loss."""
    split, baselines = content["split"], content["baselines"]
    # Of the k best models with equal weights only the best k is shown.
    uniform = [name for name in baselines if name.startswith("top-")]
    best = min(uniform, key=lambda name: baselines[name]["loss"], default=None)
    shown = [name for name in baselines if name == best or name not in uniform]
    rows = content["pick"]["rows"]
    lines = [
        (
            name,
            len(baselines[name]["members"]),
            f"{baselines[name]['loss']:.4f}",
            _format_loss(baselines[name][f"{rows}_loss"]),
            _microseconds(baselines[name]["seconds_per_row"]),
        )
        for name in shown
    ]
    print("\nfor comparison, whatever it costs:")
    print_table(("baseline", "members", f"{split} loss", f"{rows} loss", "us per row"), lines)


def _show_judged(pick: dict[str, Any]) -> None:
    rows = pick["rows"]
    if pick["before"] is None:
        print(f"{rows} rows: not available, so nothing here is of rows that chose nothing")
    for when in ("before", "after"):
        table = pick[when]
        # Only classes have a calibration error.
        if table is not None and "ece" in table:
            print(
                f"{rows} rows, {when} calibration: accuracy {table['accuracy']:.4f}, nll {table['nll']:.4f}, "
                f"brier {table['brier']:.4f}, calibration error {table['ece']:.4f}"
            )
    if pick["calibration"] is None and pick["output"] != "values":
        print("calibration: not available, the models left no such rows")


def _microseconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{1e6 * seconds:.1f}"


def _format_loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
