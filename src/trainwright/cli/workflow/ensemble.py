"""[ensemble]: library, front, pick, calibration, page, and the export that can be served."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

from trainwright.cli.formatting import size
from trainwright.cli.workflow.stage import EXPORT, StageOutcome, StageRun, take_base
from trainwright.ensemble import EnsembleSettings, Library
from trainwright.ensemble.ensemble_settings import SETTINGS_FILE, StoredSettings
from trainwright.errors import InputError
from trainwright.report.html import write_ensemble_page
from trainwright.validators import flag

__all__ = ["EnsembleStage"]

_PAGE = "ensemble.html"


@dataclass(frozen=True, kw_only=True, slots=True)
class EnsembleStage(EnsembleSettings, label=""):
    """Choose an ensemble from what the trials left; unchanged while library and settings are."""

    name: ClassVar[str] = "ensemble"
    self_contained: Annotated[bool, flag(), "export programs, which need no factory, too"] = False

    def inputs(self, work: StageRun) -> Mapping[str, Any]:
        """Return the settings, and the digests of what the trials left."""
        state = work.state(self.name)
        # Digests of what the trials left: the ensemble rests on these files alone.
        library = {
            number: sorted((offer.lease, offer.epoch, dict(offer.digests)) for offer in trial.offered.values())
            for number, trial in sorted(state.trials.items())
            if trial.offered
        }
        if not state.trials:
            raise work.missing(self.name, f"trials in {work.folder}, where there are none", "search")
        if not library:
            raise InputError(
                f"stage ensemble needs the predictions of trials, and none of {len(state.trials)} left any; call "
                "tw.ensemble.leave in the training function, and use a new directory"
            )
        return {"settings": asdict(self), "library": library}

    def run(self, work: StageRun) -> StageOutcome:
        """Select, calibrate, draw the page and export."""
        folder = work.folder
        settings = take_base(self, EnsembleSettings)
        choice = settings.choose(Library.open(folder))
        chosen = choice.ensemble
        page = write_ensemble_page(choice, folder / _PAGE)
        StoredSettings(settings=settings, by_run=True).write(folder)
        # An export needs weights of every member; without them the choice itself is still reported.
        without = [member.trial for member in chosen.members if not member.predicts]
        exported = None if without else chosen.save(folder / EXPORT, replace=True, self_contained=self.self_contained)
        split = self.test_split
        content = {
            "models": len(choice.library.members),
            "metric": choice.front.metric,
            "split": split,
            "summary": {
                **choice.scores(split),
                "ensemble_cost": chosen.cost_seconds,
                "single_cost": choice.front.single_best.cost_seconds,
                "cost_limit": choice.cost_limit,
                "single_trial": choice.front.single_best.members[0].trial,
                "ensemble_trials": [member.trial for member in chosen.members],
                "ensemble_weights": list(chosen.weights),
            },
            "calibrated": chosen.calibration is not None,
            "bytes": chosen.nbytes,
            "page": str(page),
            "export": None if exported is None else str(folder / EXPORT),
            "without_weights": without,
        }
        outputs = (_PAGE, SETTINGS_FILE, *(() if exported is None else (f"{EXPORT}/manifest.json",)))
        return StageOutcome(content=content, outputs=outputs)

    def show(self, content: Mapping[str, Any]) -> None:
        """Print the best single model beside the ensemble, on held-out rows, and where the export is."""
        description, split = content["summary"], content["split"]
        names = {"single": "best single", "ensemble": "best ensemble"}
        members = {"single": [description["single_trial"]], "ensemble": description["ensemble_trials"]}
        scored = sorted(
            key.removeprefix(f"single_{split}_") for key in description if key.startswith(f"single_{split}_")
        )
        heads = [f"{split} {name.replace('_', ' ')}" for name in scored]
        widths = [max(15, len(head) + 2) for head in heads]
        print(f"\n{'':15}{''.join(f'{h:>{w}}' for h, w in zip(heads, widths, strict=True))}{'us per row':>13}  trials")
        for key, name in names.items():
            cost = description[f"{key}_cost"]
            shown = "unknown" if cost is None else f"{1e6 * cost:.1f}"
            cells = [f"{description[f'{key}_{split}_{item}']:{w}.4f}" for item, w in zip(scored, widths, strict=True)]
            print(f"{name:15}{''.join(cells)}{shown:>13}  {', '.join(map(str, members[key]))}")
        if description["cost_limit"] is not None:
            print(f"(the ensemble may cost {1e6 * description['cost_limit']:.1f} us per row at batch 128)")
        if content["export"] is None:
            left = ", ".join(map(str, content["without_weights"]))
            print(f"not exported: trials {left} left no weights; give factory= to tw.ensemble.leave")
        else:
            holding = "" if content["bytes"] is None else f" ({size(content['bytes'])} of weights)"
            print(f"exported:   {content['export']}{holding}{', calibrated' if content['calibrated'] else ''}")
        print(f"pictures:   {content['page']}")

    def summary(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return accuracies, costs and members."""
        found: Mapping[str, Any] = content["summary"]
        return found
