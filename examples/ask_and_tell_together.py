"""A loop of your own in several processes: each opens the study, asks, and tells; its ledger is all that they share."""

from multiprocessing import Process

import trainwright as tw

SPACE = tw.Space(x=tw.Float(-2, 2), y=tw.Float(-2, 2))


def search(trials: int) -> None:
    with tw.Study.open("runs/together") as study:
        for _ in range(trials):
            study.refresh()  # what the others have told meanwhile
            configuration = study.ask()
            study.tell(configuration, loss=(configuration["x"] - 1) ** 2 + configuration["y"] ** 2)


if __name__ == "__main__":
    tw.Study(SPACE, objectives="min loss", directory="runs/together", seed=0).close()
    team = [Process(target=search, args=(15,)) for _ in range(2)]
    for process in team:
        process.start()
    for process in team:
        process.join()
    with tw.Study.open("runs/together") as study:
        print(len(study.trials), "trials by", len({trial.writer for trial in study.trials}), "processes")
