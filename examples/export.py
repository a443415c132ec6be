"""Look at a study: its report as one HTML file, and its trials as a table."""

import math

import trainwright as tw
from trainwright.report import export_csv, write_report


def train(trial: tw.Trial) -> None:
    for epoch in trial.epochs():
        loss = trial.params["floor"] + math.exp(-trial.params["speed"] * epoch)
        trial.report(loss=loss, epochs_left=9 - epoch)


if __name__ == "__main__":
    space = tw.Space(floor=tw.Float(0, 1), speed=tw.Float(0.1, 1), kind=tw.Choice("plain", "fancy"))
    study = tw.Study(space, objectives="min loss", directory="runs/report", seed=0)
    study.run(train, trials=20, searcher=tw.RandomSearcher(), scheduler=tw.ASHA(max_epochs=9), progress=False)
    study.close()
    print(write_report("runs/report"))
    print(export_csv("runs/report", "trials.csv"))
