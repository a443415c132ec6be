"""The defaults on families that no tuning has seen, from public packages, beside the best peer or a dumb baseline.

    python -m benchmarks.holdouts --json                      # minutes on two cores
    python -m benchmarks.holdouts --parts search,memory --size 3 --results FILE

Five parts, each a list of cases with the figure of ours, that of every rival, and whether ours is behind the best of
them. `search`: scikit-learn's estimators on its data sets, mean regret over the trials, compared with Optuna's TPE and
random search. `fidelity`: generated learning curves that cross late, jump or rise before they fall, the best final loss
after so many trained epochs, compared with random search under the same rule and without one. `oracle`: peak bytes of
training steps of transformers' families outside of our lists, the relative error of the prediction, compared with four
times the weights. `memory`: such families within 60 % of their plain peak, compared with their own gradient
checkpointing. `ensembles`: test log loss on tables outside of our lists, compared with the best single model and
Caruana's selection. Ours is said to be behind in every case in which a rival is better, by however little; means and
the seeds say what that is worth. Nothing here may be used to tune a default.
"""

import argparse
import math
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._report import add_arguments, environment, finish, progress, table

import trainwright as tw

__all__ = ["PARTS", "main"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A figure of ours (less is better) on one held-out problem, and those of the rivals by name."""

    part: str
    name: str
    unit: str
    ours: float
    rivals: dict[str, float]
    note: str = ""

    @property
    def best_rival(self) -> str:
        """The rival of least figure."""
        return min(self.rivals, key=lambda name: self.rivals[name])

    @property
    def behind(self) -> bool:
        """Whether a rival is better."""
        return not self.ours <= self.rivals[self.best_rival]


Function = Callable[[dict[str, Any]], float]


def _cross_validated(make: Callable[[dict[str, Any]], Any], data: str, score: str) -> Function:
    """Return the loss of an estimator by three folds."""
    from sklearn import datasets
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = getattr(datasets, f"load_{data}")(return_X_y=True)

    def loss(params: dict[str, Any]) -> float:
        scores = cross_val_score(make_pipeline(StandardScaler(), make(params)), x, y, cv=3, scoring=score)
        return float(np.nan_to_num(-scores.mean(), nan=10.0))

    return loss


def _search_problems() -> Iterator[tuple[str, tw.Space, Function]]:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import SGDClassifier
    from sklearn.svm import SVC

    scale = partial(tw.Float, log=True)
    yield (
        "SVC on wine",
        tw.Space(C=scale(1e-3, 1e3), gamma=scale(1e-5, 10.0), shrinking=tw.Choice(True, False)),
        _cross_validated(lambda p: SVC(**p, probability=False), "wine", "accuracy"),
    )
    yield (
        "SGD on breast cancer",
        tw.Space(
            alpha=scale(1e-7, 1.0), eta0=scale(1e-5, 10.0), power_t=tw.Float(0.0, 1.0), l1_ratio=tw.Float(0.0, 1.0),
            average=tw.Choice(True, False),
        ),
        _cross_validated(
            lambda p: SGDClassifier(
                **p, loss="log_loss", penalty="elasticnet", learning_rate="invscaling", max_iter=40, tol=None,
                random_state=0,
            ),
            "breast_cancer",
            "neg_log_loss",
        ),
    )  # fmt: skip
    yield (
        "boosting on diabetes",
        tw.Space(
            learning_rate=scale(1e-3, 1.0), max_leaf_nodes=tw.Int(2, 64, log=True), max_iter=tw.Int(5, 60),
            l2_regularization=scale(1e-6, 1e3), min_samples_leaf=tw.Int(1, 60),
        ),
        _cross_validated(lambda p: HistGradientBoostingRegressor(**p, random_state=0), "diabetes", "r2"),
    )  # fmt: skip


def search_cases(size: int, seeds: int) -> Iterator[Case]:
    """Yield the mean regret over 30 trials: 0 is the best found by anybody, 1 random's median, and the most."""
    searchers: dict[str, Callable[[], Any]] = {
        "ours": tw.DefaultSearcher, "optuna-tpe": tw.OptunaSearcher, "random": tw.RandomSearcher,
    }  # fmt: skip
    for name, space, loss in list(_search_problems())[:size]:
        found = {who: [_losses(space, loss, make(), seed) for seed in range(seeds)] for who, make in searchers.items()}
        low = min(min(run) for runs in found.values() for run in runs)
        middle = statistics.median(value for run in found["random"] for value in run)
        regret = {
            who: float(np.mean([np.minimum((np.minimum.accumulate(run) - low) / (middle - low), 1) for run in runs]))
            for who, runs in found.items()
        }
        ours = regret.pop("ours")
        yield Case(part="search", name=name, unit=f"mean regret, {seeds} seeds", ours=ours, rivals=regret)


def _losses(space: tw.Space, loss: Function, searcher: Any, seed: int, trials: int = 30) -> list[float]:
    with tempfile.TemporaryDirectory() as folder, tw.Study(space, "min loss", directory=folder, seed=seed) as study:
        run = partial(study.run, engine=tw.Local(workers=0), progress=False)
        run(lambda trial: loss(dict(trial.params)), trials=trials, searcher=searcher)
        return [trial.values["loss"] for trial in sorted(study.trials, key=lambda trial: trial.number)]


def _late(p: dict[str, Any], progress: float) -> float:
    """Rise before falling; slow learners end best."""
    speed = 10 ** (2 * p["speed"])
    end = 0.2 + 0.5 * p["speed"] + (p["shape"] - 0.6) ** 2
    return float(end + math.exp(-speed * progress) + 0.3 * p["bump"] * math.sin(3 * progress) * math.exp(-progress))


def _jumping(p: dict[str, Any], progress: float) -> float:
    """Stay on a plateau until a moment that depends on the configuration."""
    moment = 0.05 + 0.6 * abs(p["speed"] - 0.7)
    end = 0.1 + (p["shape"] - 0.3) ** 2 + 0.2 * p["bump"]
    return float(end if progress > moment else 1.0 + 0.05 * p["shape"])


def _overfitting(p: dict[str, Any], progress: float) -> float:
    """Fall, and rise again."""
    speed = 1 + 9 * p["speed"]
    return float(
        0.15 + 0.4 * (p["shape"] - 0.5) ** 2 + math.exp(-speed * progress) + 0.5 * (1 - p["bump"]) * progress**2
    )


def fidelity_cases(size: int, seeds: int) -> Iterator[Case]:
    """Yield the best loss that a study has seen after as many epochs as 12 full trainings take; mean over seeds."""
    length, budget = 27, 12 * 27
    space = tw.Space(speed=tw.Float(0, 1), shape=tw.Float(0, 1), bump=tw.Float(0, 1), unused=tw.Float(0, 1))
    methods: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "ours": (tw.DefaultSearcher, partial(tw.ASHA, max_epochs=length)),
        "random+asha": (tw.RandomSearcher, partial(tw.ASHA, max_epochs=length)),
        "random": (tw.RandomSearcher, partial(tw.FixedEpochs, length)),
    }

    def best(curve: Callable[..., float], searcher: Any, rule: Any, seed: int) -> float:
        seen: list[float] = []

        def train(trial: tw.Trial) -> None:
            noise = np.random.default_rng([seed, trial.number])
            for epoch in trial.epochs():
                seen.append(curve(trial.params, epoch / length) + float(noise.normal(0, 0.01)))
                trial.report(loss=seen[-1])

        with tempfile.TemporaryDirectory() as folder, tw.Study(space, "min loss", directory=folder, seed=seed) as study:
            trials = 12
            while len(seen) < budget:
                study.run(
                    train, trials=trials, searcher=searcher, scheduler=rule, engine=tw.Local(workers=0), progress=False
                )
                trials += 8
        return min(seen[:budget])

    for curve in (_late, _jumping, _overfitting)[:size]:
        means = {
            who: statistics.mean(best(curve, searcher(), rule(), seed) for seed in range(seeds))
            for who, (searcher, rule) in methods.items()
        }
        ours = means.pop("ours")
        name = curve.__name__.strip("_")
        yield Case(part="fidelity", name=name, unit=f"best loss, {seeds} seeds", ours=ours, rivals=means)


_TEXT = {
    "vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 128,
    "max_position_embeddings": 66, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
# None of them is in the lists of `memory/models.py` and `plan/peak_models.py`.
FAMILIES: dict[str, dict[str, Any]] = {
    "Nemotron": {"num_key_value_heads": 2}, "MPNet": {}, "FNet": {}, "Persimmon": {}, "MegatronBert": {}, "Ernie": {},
    "Olmo2": {"num_key_value_heads": 2}, "SqueezeBert": {"embedding_size": 64, "q_groups": 1, "k_groups": 1},
}  # fmt: skip


def _make_family(name: str) -> tuple[Any, Any]:
    import torch
    import transformers

    config = getattr(transformers, f"{name}Config")(**_TEXT | FAMILIES[name])
    known = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    encodes = config.model_type not in known or "Bert" in name or name == "Ernie"
    kind = transformers.AutoModelForMaskedLM if encodes else transformers.AutoModelForCausalLM
    return kind.from_config(config).train(), torch.randint(3, 97, (8, 64))


def oracle_cases(size: int, seeds: int) -> Iterator[Case]:
    """Yield the relative error of the predicted peak of a training step with AdamW, by the allocator's events."""
    del seeds
    from benchmarks.plan import peaks
    from benchmarks.plan.peak_models import MODELS
    from torch import nn

    class Scores(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.model = _make_family(name)[0]

        def forward(self, tokens: Any) -> Any:
            return self.model(tokens).logits

    def first_rows(name: str, rows: int) -> tuple[Any]:
        return (_make_family(name)[1][:rows],)

    for name in list(FAMILIES)[:size]:
        MODELS[name] = (partial(Scores, name), partial(first_rows, name))
        row = peaks.row_of(peaks.Configuration(model=name, batch=8, optimizer="adamw", precision="fp32"))
        weights = sum(each.nbytes for each in Scores(name).parameters())
        rivals = {"four times the weights": abs(4 * weights / row.allocator_bytes - 1)}
        note = "predicted less than is needed" if row.false_fit else ""
        yield Case(
            part="oracle", name=name, unit="relative error of the peak", ours=abs(row.error), rivals=rivals, note=note
        )


def memory_cases(size: int, seeds: int) -> Iterator[Case]:
    """Yield the share of the plain peak that a model trains in, equal to the bit; 1 where a way is refused."""
    del seeds
    import torch
    from benchmarks.memory import models
    from benchmarks.memory.allocator import allocator_peak

    def made(name: str) -> Any:
        model, tokens = _make_family(name)
        return model, {"input_ids": tokens, "labels": tokens}, lambda out: out.loss

    for name in list(FAMILIES)[:size]:
        models.MODELS[name] = partial(made, name)
        found = models.check_model(name)
        if "missing" in found:
            progress(f"{name}: left out: {found['missing']}")
            continue
        accepted = not found["failure"] and found["equal"] and found["kept"]
        torch.manual_seed(0)
        model, sample, loss = made(name)
        try:
            model.gradient_checkpointing_enable()
            theirs = allocator_peak(model, sample, loss) / found["plain_bytes"]
        except Exception as error:  # noqa: BLE001  some families have none
            progress(f"{name}: no gradient checkpointing: {error}")
            theirs = 1.0
        ours = found["peak_share"] if accepted else 1.0
        # A budget is a promise, not a minimum: what fits into 60 % is not behind for using them.
        rivals = {"gradient checkpointing": max(theirs, models.SHARE)}
        yield Case(
            part="memory", name=name, unit="share of the plain peak", ours=ours, rivals=rivals, note=found["failure"]
        )


def ensemble_cases(size: int, seeds: int) -> Iterator[Case]:
    """Yield the test log loss of networks, trees and linear models searched for 15 s of processor time."""
    from benchmarks.ensemble import small_tables
    from benchmarks.ensemble.tables_data import Table
    from sklearn import datasets

    makers: dict[str, Callable[[int], Any]] = {
        "wine": lambda _: datasets.load_wine(return_X_y=True),
        "hastie": lambda seed: datasets.make_hastie_10_2(1000, random_state=seed),
        "quantiles": lambda seed: datasets.make_gaussian_quantiles(n_samples=800, n_features=6, random_state=seed),
        "iris": lambda _: datasets.load_iris(return_X_y=True),
    }
    for name, make in list(makers.items())[:size]:
        found = []
        for seed in range(seeds):
            x, y = make(seed)
            order = np.random.default_rng(seed).permutation(len(y))
            half = len(y) // 2
            columns = {f"x{place}": x[:, place] for place in range(x.shape[1])}
            labels = np.unique(y, return_inverse=True)[1]
            data = Table(columns=columns, y=labels, train=order[:half], test=order[half:])
            found.append(small_tables._run_ours(data, seed, 15.0))  # noqa: SLF001  the benchmark's own, on other tables
        means = {who: statistics.mean(run[who] for run in found) for who in ("ours", "single best", "caruana")}
        ours = means.pop("ours")
        yield Case(part="ensembles", name=name, unit=f"test log loss, {seeds} seeds", ours=ours, rivals=means)


EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PARTS: dict[str, Callable[[int, int], Iterator[Case]]] = {
    "search": search_cases, "fidelity": fidelity_cases, "oracle": oracle_cases, "memory": memory_cases,
    "ensembles": ensemble_cases,
}  # fmt: skip


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Judge the parts, and print where the defaults are behind."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--size", type=int, default=3, help="problems of a part, at most")
    parser.add_argument("--seeds", type=int, default=2)
    add_arguments(parser)
    options = parser.parse_args(argv)
    chosen = options.parts.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        parser.error(f"--parts: got {unknown[0]!r}; allowed: {', '.join(PARTS)}")
    if min(options.size, options.seeds) < 1:
        parser.error("--size and --seeds must be at least 1")
    # Where models and the estimators of tables lie.
    sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "projects" / "tabular")]
    cases: list[Case] = []
    for part in chosen:
        progress(f"{part}:")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for case in PARTS[part](options.size, options.seeds):
                progress(f"  {case.name}: {case.ours:.4f}, {case.best_rival} {case.rivals[case.best_rival]:.4f}")
                cases.append(case)
    rows = [
        (each.part, each.name, each.unit, f"{each.ours:.4f}", each.best_rival, f"{each.rivals[each.best_rival]:.4f}",
         "BEHIND" if each.behind else "")
        for each in cases
    ]  # fmt: skip
    print(table(("part", "problem", "figure, less is better", "ours", "best rival", "its figure", ""), rows))
    behind = [each for each in cases if each.behind]
    print(
        f"\nbehind the best rival in {len(behind)} of {len(cases)}"
        + "".join(f"; {each.part} {each.name}" for each in behind)
    )
    summary: dict[str, Any] = {
        f"{part}_behind": [each.name for each in behind if each.part == part] for part in chosen
    } | {"cases": len(cases), "behind": len(behind)}
    kept = [vars(each) | {"behind": each.behind, "best_rival": each.best_rival} for each in cases]
    result = {
        "benchmark": "holdouts", "size": options.size, "seeds": options.seeds, "summary": summary, "cases": kept,
        "environment": environment(),
    }  # fmt: skip
    finish(result, options)
    return result


if __name__ == "__main__":
    main()
