"""AutoGluon's `best_quality` on one table, run by a Python of its own: `python _autogluon.py FOLDER SECONDS`.

FOLDER holds `train.csv` and `test.csv` with the classes in the column "class"; writes `autogluon.json` there. One
processor. SECONDS are of its processor time, the children's included: it plans by a clock that shows this, so that
what else runs on the machine takes nothing from it. What it imports meanwhile is imported before.
"""

import contextlib
import importlib
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

_LEARNERS = ("lightgbm", "catboost", "xgboost", "fastai.tabular.all", "sklearn.ensemble")


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    """Fit, predict the test rows, and write what came out."""
    wall = time.time
    started = wall()
    # Before it is imported, for some of its modules import the function itself.
    time.time = lambda: started + _processor_seconds()
    for name in _LEARNERS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from autogluon.tabular import TabularPredictor, __version__

    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    train, test = (pd.read_csv(folder / f"{name}.csv") for name in ("train", "test"))
    before, began = _processor_seconds(), wall()
    predictor = TabularPredictor(label="class", eval_metric="log_loss", path=folder / "models", verbosity=1)
    predictor.fit(train, presets="best_quality", time_limit=seconds, num_cpus=1, num_gpus=0)
    fitted, waited = _processor_seconds() - before, wall() - began
    before = _processor_seconds()
    found = predictor.predict_proba(test)
    cost = (_processor_seconds() - before) / len(test)
    order = np.searchsorted(np.array(found.columns), test["class"].to_numpy())
    chance = found.to_numpy()[np.arange(len(test)), order]
    result = {
        "log_loss": float(-np.log(chance.clip(1e-7)).mean()),
        "processor_seconds": fitted,
        "wall_seconds": waited,
        "seconds_per_row": cost,
        "models": len(predictor.model_names()),
        "best": predictor.model_best,
        "kinds": sorted({name.split("_")[0] for name in predictor.model_names(level=1)}),
        "version": __version__,
    }
    (folder / "autogluon.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
