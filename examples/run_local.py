"""Two trials at once, each alone in a worker process, with a time limit, logs and failures."""

import trainwright as tw


def train(trial: tw.Trial) -> None:
    rate = trial.params["rate"]
    print(f"trial {trial.number} on {trial.device} with rate {rate:.4f}")  # goes to the trial's log
    if rate > 0.5:
        raise ValueError(f"diverged with rate {rate:.2f}")
    for epoch in trial.epochs(5):
        trial.report(loss=(rate - 0.1) ** 2 + 1 / epoch)


if __name__ == "__main__":
    space = tw.Space(rate=tw.Float(0.001, 1.0, log=True))
    study = tw.Study(space, objectives="min loss", directory="runs/local", seed=1)
    engine = tw.Local(workers=2, timeout_seconds=3600)
    study.run(train, trials=12, searcher=tw.QuasiRandomSearcher(), engine=engine)
    print(f"{study.state.results} results, best rate {study.best.params['rate']:.3f}")
    for trial in study.trials:
        if trial.failure is not None:
            print(f"trial {trial.number} failed ({trial.failure.kind}): {trial.failure.message}")
