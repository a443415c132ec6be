"""A ledger of any size, written at once: trials with learning curves, rungs, resizes and failures, one after another.

It is one writer's journal, with times as they would have been; what a study of that size would have taken weeks for.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainwright.ledger import DirectoryLedger, Record, facts
from trainwright.ledger.writers import Writer, new_writer
from trainwright.randomness import rng
from trainwright.space import Choice, Float, Int, Space
from trainwright.space.configuration import Configuration

__all__ = ["SPACE", "trial_records", "write_study"]

SPACE = Space(
    lr=Float(1e-5, 1e-1, log=True),
    width=Int(16, 512, log=True),
    depth=Int(2, 12),
    dropout=Float(0.0, 0.6),
    optimizer=Choice("sgd", "adamw", "lion"),
    schedule=Choice("cosine", "linear"),
)
_RUNGS = (1, 3, 9)


@dataclass(slots=True)
class _Clock:
    """When each of the workers is free, in seconds since 1970."""

    free: list[float]

    def first(self) -> int:
        return int(np.argmin(self.free))


def write_study(directory: Path, *, trials: int, epochs: int, seed: int = 0, workers: int = 64) -> Path:
    """Write a finished study of so many trials, each with all its epochs, and return its directory."""
    DirectoryLedger(directory / "ledger", create=True).close()
    writer = new_writer()
    clock = _Clock([time.time() - 1.2 * 30.0 * trials * epochs / workers] * workers)
    began = clock.free[0]
    created = facts.created(
        space=SPACE.to_json(), objectives=["min val_loss"], seed=seed, versions={"trainwright": "0.1.0"}
    )
    rows = SPACE.configurations(SPACE.sample(rng(seed, "benchmark space", 0), trials))
    sequence = 0
    with (directory / "ledger" / "journal" / f"{writer}.jsonl").open("xb") as file:
        for record in (created, facts.joined(Writer.here(), session=1)):
            file.write(record.stamped(writer, sequence, began).line())
            sequence += 1
        for number, configuration in enumerate(rows):
            slot = clock.first()
            for record, at in trial_records(
                number, configuration, epochs=epochs, seed=seed, slot=slot, begin=clock.free[slot]
            ):
                file.write(record.stamped(writer, sequence, at).line())
                sequence += 1
                clock.free[slot] = at
    return directory


def trial_records(
    number: int, configuration: Configuration, *, epochs: int, seed: int = 0, slot: int = 0, begin: float = 0.0
) -> Iterator[tuple[Record, float]]:
    """Yield what a trial leaves, with its time: every hundredth fails, every tenth goes on with twice the devices."""
    draws = rng(seed, "benchmark", number)
    params = configuration.params
    floor = 0.1 + 0.3 * abs(math.log10(params["lr"]) + 3) + 0.3 * params["dropout"] + 0.2 * float(draws.random())
    speed, seconds = 0.3 + float(draws.random()), 20.0 + 20.0 * float(draws.random())
    noise = 0.01 * draws.standard_normal(epochs)
    devices: tuple[str, ...] = (f"node{slot // 4}:gpu{slot % 4}",)
    lease, since, at = 1, 0, begin
    yield facts.proposed(number, params=params, key=configuration.key, origin={}, seen=0, seen_hash=""), at
    yield facts.started(number, lease, slot=f"gpu{slot}", devices=devices, resumed_epoch=0), at
    metrics: dict[str, float] = {}
    for epoch in range(1, epochs + 1):
        at += seconds
        loss = floor + 2.0 * epoch**-speed + float(noise[epoch - 1])
        metrics = {"val_loss": loss, "val_accuracy": math.exp(-loss)}
        spent = seconds * (epoch - since)
        yield facts.reported(number, lease, epoch=epoch, step=None, metrics=metrics, wall_seconds=spent), at
        if epoch in _RUNGS and epoch < epochs:
            verdict = facts.decided(
                number, epoch=epoch, rule="ASHA", verdict="continue", value=loss, threshold=loss + 0.1
            )
            yield verdict, at
        if number % 100 == 99 and epoch == epochs // 2:
            trace = "Traceback (most recent call last):\n  ...\nRuntimeError: CUDA out of memory"
            yield (
                facts.failed(
                    number,
                    lease,
                    failure="out_of_memory",
                    message="CUDA out of memory",
                    traceback=trace,
                    wall_seconds=spent,
                ),
                at,
            )
            return
        if number % 10 == 9 and epoch == _RUNGS[-1] < epochs:
            yield facts.paused(number, lease, reason="resized", epoch=epoch, values=metrics, wall_seconds=spent), at
            lease, since, seconds, devices = 2, epoch, seconds / 1.8, (*devices, f"node{slot // 4}:gpu{(slot + 1) % 4}")
            yield facts.started(number, lease, slot=f"gpu{slot}", devices=devices, resumed_epoch=epoch), at
    yield facts.finished(number, lease, reason="completed", values=metrics, wall_seconds=seconds * (epochs - since)), at
