"""One of many workers on one study: run it as often as you like, at once or later, here or on other hosts."""

import time

import trainwright as tw

SPACE = tw.Space(rate=tw.Float(1e-4, 1.0, log=True), width=tw.Int(16, 256, log=True))


def train(trial: tw.Trial) -> None:
    for epoch in trial.epochs(3):
        time.sleep(0.05)
        trial.report(loss=abs(trial.params["rate"] - 0.1) + 1 / trial.params["width"] + 1 / epoch)


if __name__ == "__main__":
    with tw.Study(SPACE, objectives="min loss", directory="runs/team", seed=0) as study:
        worker = tw.Worker(where=study, train=train, engine=tw.Local(workers=0))
        ours = worker.run(trials=24, progress=False)
        print(f"{ours} of {study.state.results} results are mine")
