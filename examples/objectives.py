"""Search for several objectives at once: small loss and few parameters, with a bound on the loss, and a constraint."""

import math

import trainwright as tw

space = tw.Space(width=tw.Int(4, 512, log=True), depth=tw.Int(1, 6), rate=tw.Float(1e-4, 1e-1, log=True))
study = tw.Study(space, objectives=["min loss <= 0.6", "min parameters"], constraints=["latency_ms < 6"], seed=0)

for _ in range(60):
    configuration = study.ask()
    width, depth, rate = (configuration[name] for name in ("width", "depth", "rate"))
    loss = 2.0 / math.log2(width * depth) + 0.1 * math.log10(rate / 3e-3) ** 2
    study.tell(configuration, loss=loss, parameters=width * width * depth, latency_ms=depth + width / 100)

front = sorted(study.front, key=lambda trial: trial.values["parameters"])
print(f"{len(study.feasible)} of {len(study.trials)} trials are feasible, {len(front)} on the front; the smallest:")
for trial in front[:5]:
    print(f"trial {trial.number}: loss {trial.values['loss']:.3f}, {trial.values['parameters']:,.0f} parameters")
