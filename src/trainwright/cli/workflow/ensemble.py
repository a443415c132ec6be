"""[ensemble]: library, front, pick, calibration, page, and the export that can be served."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

from trainwright.cli.command import print_table, size
from trainwright.cli.workflow.stage import EXPORT, StageOutcome, StudyJob, take_base
from trainwright.ensemble import EnsembleSettings, Library
from trainwright.ensemble.ensemble_settings import SETTINGS_FILE, ChosenEnsemble, StoredSettings
from trainwright.errors import InputError
from trainwright.report.html import write_ensemble_page
from trainwright.validators import flag

__all__ = ["ENSEMBLE_PAGE", "EnsembleStage", "describe_choice", "show_choice"]

ENSEMBLE_PAGE = "ensemble.html"
_POINTS = 12  # of the front that are shown


@dataclass(frozen=True, kw_only=True, slots=True)
class EnsembleStage(EnsembleSettings, label=""):
    """Choose an ensemble from what the trials left; unchanged while library and settings are."""

    name: ClassVar[str] = "ensemble"
    self_contained: Annotated[bool, flag(), "export programs, which need no factory, too"] = False

    def inputs(self, job: StudyJob) -> Mapping[str, Any]:
        """Return the settings, and the digests of what the trials left."""
        state = job.state(self.name)
        # Digests of what the trials left: the ensemble rests on these files alone.
        library = {
            number: sorted((offer.lease, offer.epoch, dict(offer.digests)) for offer in trial.offered.values())
            for number, trial in sorted(state.trials.items())
            if trial.offered
        }
        if not state.trials:
            raise job.missing(self.name, f"trials in {job.folder}, where there are none", "search")
        if not library:
            raise InputError(
                f"stage ensemble needs the predictions of trials, and none of {len(state.trials)} left any; call "
                "tw.ensemble.leave in the training function, and use a new directory"
            )
        return {"settings": asdict(self), "library": library}

    def run(self, job: StudyJob) -> StageOutcome:
        """Select, calibrate, draw the page and export."""
        folder = job.folder
        settings = take_base(self, EnsembleSettings)
        choice = settings.choose(Library.open(folder))
        page = write_ensemble_page(choice, folder / ENSEMBLE_PAGE)
        StoredSettings(settings=settings, by_run=True).write(folder)
        outputs = [ENSEMBLE_PAGE, SETTINGS_FILE]
        # An export needs weights of every member; without them the choice itself is still reported.
        without = [member.trial for member in choice.ensemble.members if not member.predicts]
        if not without:
            choice.ensemble.save(folder / EXPORT, replace=True, self_contained=self.self_contained)
            outputs.append(f"{EXPORT}/manifest.json")
        places = {"page": str(page), "export": None if without else str(folder / EXPORT), "without_weights": without}
        return StageOutcome(content={**describe_choice(choice), **places}, outputs=tuple(outputs))

    def show(self, content: Mapping[str, Any]) -> None:
        """Print the front, the pick beside the best single model, on held-out rows, and where the export is."""
        show_choice(content)


def describe_choice(choice: ChosenEnsemble) -> dict[str, Any]:
    """Return the front, the pick and what it is compared with, as JSON."""
    front, chosen, single = choice.front, choice.ensemble, choice.front.single_best
    return {
        "metric": front.metric,
        "split": front.split,
        "models": len(choice.library.members),
        "excluded": front.excluded,
        # Evenly along the front, from the least loss on.
        "front": [asdict(point) for point in front.points[:: -(-len(front.points) // _POINTS)]],
        "baselines": {name: asdict(point) for name, point in front.baselines.items()},
        "pick": {"how": choice.settings.pick, **choice.report.to_json()},
        "summary": {
            **choice.scores(choice.settings.test_split),
            "ensemble_cost": chosen.cost_seconds,
            "single_cost": single.cost_seconds,
            "cost_limit": choice.cost_limit,
            "single_trial": single.members[0].trial,
            "ensemble_trials": [member.trial for member in chosen.members],
            "ensemble_weights": list(chosen.weights),
        },
    }


def show_choice(content: Mapping[str, Any]) -> None:
    """Print what `describe_choice` returned, and where `page` and `export` are."""
    pick, split, summary = content["pick"], content["split"], content["summary"]
    print(f"{content['models']} models, selected by {content['metric'].replace('_', ' ')} on {split} rows")
    for trial, why in content["excluded"].items():
        print(f"left out: trial {trial}, as {why}")
    print()
    front = [
        (
            len(point["members"]),
            _number(point["loss"]),
            _microseconds(point["seconds_per_row"]),
            "unknown" if point["bytes"] is None else size(point["bytes"]),
            ", ".join(map(str, point["members"])),
        )
        for point in content["front"]
    ]
    print_table(("members", f"{split} loss", "us per row", "size", "trials"), front)
    print(f"\nchosen ({pick['how']}), combination rule {pick['rule']}:")
    members = [
        (
            row["trial"],
            f"{row['weight']:.0%}",
            _number(row["loss"]),
            _number(row["gain"]),
            _microseconds(row["seconds_per_row"]),
        )
        for row in pick["members"]
    ]
    print_table(("trial", "weight", f"{split} loss", "gain", "us per row"), members)
    _show_judged(pick)
    print()
    scored = [key.removeprefix("single_") for key in summary if key.startswith(f"single_{pick['rows']}_")]
    compared = [
        (f"best {who}", *(_number(summary[f"{who}_{key}"]) for key in scored), _microseconds(summary[f"{who}_cost"]))
        for who in ("single", "ensemble")
    ]
    print_table(("", *(key.replace("_", " ") for key in scored), "us per row"), compared)
    if summary["cost_limit"] is not None:
        print(f"(the ensemble may cost {_microseconds(summary['cost_limit'])} us per row at batch 128)")
    for warning in content.get("warnings", ()):
        print(f"warning: {warning}")
    if pick["cost"]:
        print(f"cost:       {pick['cost']}")
    if content["export"]:
        holding = "" if pick["bytes"] is None else f" ({size(pick['bytes'])} of weights)"
        print(f"exported:   {content['export']}{holding}{', calibrated' if pick['calibration'] else ''}")
    elif content.get("without_weights"):
        left = ", ".join(map(str, content["without_weights"]))
        print(f"not exported: trials {left} left no weights; give factory= to tw.ensemble.leave")
    print(f"pictures:   {content['page']}")


def _show_judged(pick: Mapping[str, Any]) -> None:
    metric, rows = pick["metric"].replace("_", " "), pick["rows"]
    for name, loss in sorted(pick["losses"].items()):
        print(f"{name} {metric}: {loss:.4f}")
    if pick["before"] is None:
        print(f"{rows} rows: not available, so no score here is of rows that the selection did not use")
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


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
