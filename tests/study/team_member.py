"""One worker of a team, the first makes the study: `python team_member.py DIRECTORY TRIALS EPOCHS [torch] [pool]`."""

import sys

import small_study

import trainwright as tw


def main(directory, trials, epochs, *words):
    study = tw.Study(small_study.SPACE, objectives="min loss", directory=directory, seed=5)
    worker = tw.Worker(
        where=study,
        train=small_study.train_with_torch if "torch" in words else small_study.train,
        searcher=tw.RandomSearcher(),
        scheduler=tw.FixedEpochs(int(epochs)),
        engine=tw.Local(workers=1 if "pool" in words else 0),
        grace_seconds=20.0,
    )
    worker.run(trials=int(trials), progress=False)
    study.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
