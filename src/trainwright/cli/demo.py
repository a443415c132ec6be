"""`trainwright demo`: a study with early stopping, its ensemble and a server of it, in two minutes."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np

from trainwright.cli.command import Argument, Option, Result, print_table
from trainwright.engine import Local
from trainwright.ensemble import EnsembleSettings, Library
from trainwright.ensemble.ensemble_settings import ChosenEnsemble
from trainwright.ensemble.metrics import SMALLEST
from trainwright.errors import MissingExtra
from trainwright.ledger import State
from trainwright.randomness import rng
from trainwright.report import write_report
from trainwright.schedule import ASHA
from trainwright.search import RandomSearcher
from trainwright.serve import Deployment
from trainwright.space import Float, Int, Space
from trainwright.study import Study

__all__ = ["demo"]

_TRIALS, _EPOCHS, _MEMBERS = 60, 27, 8


def demo(
    directory: Annotated[Path, Argument(help="Where the study goes.")] = Path("runs/digits-demo"),
    *,
    workers: Annotated[int, Option(help="Trials at a time, each in a process of its own.")] = 2,
    seed: Annotated[int, Option(help="Of the study: other configurations and weights.")] = 0,
) -> Result:
    """Search 60 small networks on scikit-learn's digits, select an ensemble, and query a server of it.

    Kill it at any moment, and run it again: it resumes.
    """
    with MissingExtra.instead_of_import_error("trainwright demo", "torch and scikit-learn", "demo"):
        from trainwright.cli.demo_training import load_rows, train
    space = Space(
        rate=Float(1e-3, 1e-1, log=True),
        width=Int(16, 128, log=True),
        dropout=Float(0.0, 0.4),
        decay=Float(1e-5, 1e-1, log=True),
    )
    with Study(space, "min val_loss", directory=directory, seed=seed) as study:
        engine, scheduler = Local(workers=workers), ASHA(max_epochs=_EPOCHS, min_epochs=3)
        # Drawn at random, networks differ more than those of the default searcher, and an ensemble gains more surely.
        study.run(train, trials=_TRIALS, searcher=RandomSearcher(), scheduler=scheduler, engine=engine)
        saved = _measure_saving(study.state)
    chosen = EnsembleSettings(max_members=_MEMBERS).choose(Library.open(directory))
    gain = _compare(chosen)
    images, digits = (each.numpy()[:100] for each in load_rows("test"))
    with Deployment(chosen.ensemble) as service:
        answers = service.predict(images)
    report = write_report(directory)
    content: dict[str, Any] = {
        "early_stopping": saved,
        "test": gain,
        "served": {"rows": len(digits), "right": int((answers.argmax(1) == digits).sum())},
        "report": str(report),
    }
    return Result(content, lambda: _show(content))


def _measure_saving(state: State) -> dict[str, float]:
    """Return the epochs and workers' seconds that were spent, and the epochs of full training."""
    epochs = sum(trial.epoch for trial in state.trials.values())
    whole = _EPOCHS * len(state.trials)
    return {
        "epochs": epochs,
        "full_epochs": whole,
        "seconds": state.device_seconds,
        "saved_share": 1.0 - epochs / whole,
    }


def _compare(chosen: ChosenEnsemble) -> dict[str, Any]:
    """Return the cross-entropy of the best single network and of the ensemble on rows that nothing was chosen by.

    The interval of the difference is of 95 %, by resampling the rows.
    """
    single, ensemble = chosen.front.single_best, chosen.ensemble
    digits = ensemble.members[0].targets("test")
    shares = [each.predictions("test")[np.arange(len(digits)), digits] for each in (single, ensemble)]
    # As in the metric: a network may give the true digit a probability that rounds to 0.
    losses = [-np.log(np.maximum(share, SMALLEST)) for share in shares]
    change = losses[1] - losses[0]
    rows = rng(0, "demo", 0).integers(len(change), size=(1000, len(change)))
    low, high = np.quantile(change[rows].mean(axis=1) / losses[0].mean(), [0.025, 0.975])
    return {
        "rows": len(digits),
        "single": float(losses[0].mean()),
        "ensemble": float(losses[1].mean()),
        "change": float(change.mean() / losses[0].mean()),
        "low": float(low),
        "high": float(high),
        "members": len(ensemble.members),
        "single_accuracy": single.score("test", "accuracy"),
        "ensemble_accuracy": ensemble.score("test", "accuracy"),
    }


def _show(content: dict[str, Any]) -> None:
    saved, test, served = content["early_stopping"], content["test"], content["served"]
    print(
        f"early stopping: {saved['epochs']:,} of {saved['full_epochs']:,} epochs trained, "
        f"{saved['saved_share']:.0%} saved ({saved['seconds']:.0f} s of workers' time spent)"
    )
    rows = [
        [who, number, f"{test[key]:.4f}", f"{test[f'{key}_accuracy']:.1%}"]
        for who, number, key in (("best single network", 1, "single"), ("ensemble", test["members"], "ensemble"))
    ]
    print_table([f"on {test['rows']} test rows", "networks", "cross-entropy", "accuracy"], rows)
    print(f"the ensemble's loss: {test['change']:+.1%} (95 % interval {test['low']:+.1%} to {test['high']:+.1%})")
    print(f"served: {served['right']} of the first {served['rows']} test images are classified correctly")
    print(f"report: {content['report']}")
