"""A driver that is signalled: `python signalled.py WORKERS RANKS`; it takes studies, one a line: DIRECTORY GRACE.

Its processes stay between studies, as they would take long to start. It answers each line with how the run ended. A
trial's second epoch waits for the file DIRECTORY.go.
"""

import sys
import time
from pathlib import Path

import small_study

import trainwright as tw


class Kept(tw.Local):
    """Keeps its processes when a study closes it."""

    def close(self):
        pass


def train(trial):
    gate = Path(f"{trial.assignment.directory}.go")
    for epoch in trial.epochs():
        small_study.begun(trial, epoch)
        while epoch == 2 and not gate.exists():
            time.sleep(0.01)
        trial.report(loss=1.0 / epoch)


def main(workers, ranks):
    engine = Kept(workers=workers, gpus=())
    scheduler = tw.Scheduler(tw.FixedEpochs(4), tw.Fixed(ranks))
    for line in sys.stdin:
        directory, grace = line.split()
        with tw.Study(small_study.SPACE, "min loss", directory=directory, seed=5) as study:
            worker = tw.Worker(where=study, train=train, scheduler=scheduler, engine=engine, grace_seconds=float(grace))
            try:
                worker.run(trials=1, progress=False)
                sys.stdout.write("returned\n")
            except KeyboardInterrupt:
                sys.stdout.write("interrupted\n")
            sys.stdout.flush()
    tw.Local.close(engine)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
