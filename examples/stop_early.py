"""Stop bad trials early: ASHA compares trials at epochs 1, 3 and 9 and lets the best third continue."""

import math

import trainwright as tw


def train(trial: tw.Trial) -> None:
    floor, speed = trial.params["floor"], trial.params["speed"]
    for epoch in trial.epochs():  # up to the rule's max_epochs
        trial.report(loss=floor + math.exp(-speed * epoch))  # may end the trial here, quietly


if __name__ == "__main__":
    space = tw.Space(floor=tw.Float(0, 1), speed=tw.Float(0.1, 1))
    study = tw.Study(space, objectives="min loss", directory="runs/stopping", seed=0)
    study.run(train, trials=30, searcher=tw.RandomSearcher(), scheduler=tw.ASHA(max_epochs=27), progress=False)
    trained = sum(trial.epoch for trial in study.trials)
    print(f"{study.state.counts['complete']} complete, {study.state.counts['stopped']} stopped")
    print(f"{trained} epochs in place of {30 * 27}")
    print(f"best loss {study.best.values['loss']:.3f} after {study.best.epoch} epochs")
