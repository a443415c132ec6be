"""Search in a loop of your own: ask for a configuration, tell what it gave."""

import trainwright as tw

space = tw.Space(x=tw.Float(-2, 2), y=tw.Float(-2, 2), shape=tw.Choice("bowl", "ridge"))
study = tw.Study(space, objectives="min loss", seed=0)

for _ in range(40):
    configuration = study.ask()
    x, y = configuration["x"], configuration["y"]
    loss = (x - 1) ** 2 + (y + 0.5) ** 2 if configuration["shape"] == "bowl" else abs(x) + 0.1
    study.tell(configuration, loss=loss, distance=abs(x - 1))

best = study.best
print(f"trial {best.number}: loss {best.values['loss']:.3f} with {best.params['shape']}")
