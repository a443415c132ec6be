"""The same objective, unchanged, in a study of ours: worker processes, ASHA, and a folder that resumes."""

from optuna_script import objective

import trainwright as tw

train = tw.from_optuna(objective)

if __name__ == "__main__":
    study = tw.Study(train.space(), "min loss", directory="runs/optuna")  # its space is found by dry runs
    study.run(train, trials=12, scheduler=tw.ASHA(max_epochs=9), engine=tw.Local(workers=2), progress=False)
    print(len(study.trials), "trials, best with", dict(study.best.params))
