"""How much faster data-parallel training is on 2 and 4 times 4 GPUs, as others have measured it.

Step times of Sia (Jayaram Subramanya et al., SOSP 2023; github.com/siasosp23/artifacts, `placements-KIND.csv`), whose
files state no licence and are not copied here: `SPEEDS` is what `derived` makes of them. Nodes have 8 GPUs (DGX, RTX)
or 4 (AWS), and are filled. "held": the largest batch profiled on 4 GPUs, divided among more; step times are
interpolated linearly in the batch per GPU. "grown": the largest batch per GPU profiled on all three.

    python benchmarks/schedule/speeds.py FOLDER    # compares with the files
"""

import csv
import sys
from pathlib import Path

import numpy as np

__all__ = ["SPEEDS", "derived"]

# Of a model on a machine: speed-ups on 8 and 16 GPUs.
SPEEDS: dict[tuple[str, str], dict[str, tuple[float, float]]] = {
    ("ImageNet", "DGX"): {"held": (1.58, 1.96), "grown": (1.8, 3.57)},
    ("ImageNet", "RTX"): {"held": (1.21, 1.42), "grown": (1.82, 3.4)},
    ("ImageNet", "AWS"): {"held": (1.5, 2.07), "grown": (1.98, 3.84)},
    ("CIFAR-10", "DGX"): {"held": (1.64, 2.2), "grown": (1.93, 3.68)},
    ("CIFAR-10", "RTX"): {"held": (1.77, 2.33), "grown": (1.97, 3.88)},
    ("CIFAR-10", "AWS"): {"held": (1.76, 3.53), "grown": (1.86, 3.68)},
}
_FOLDERS = {"ImageNet": "imagenet", "CIFAR-10": "cifar10"}
_PLACEMENTS = {"DGX": ("4", "8", "88"), "RTX": ("4", "8", "88"), "AWS": ("4", "44", "4444")}


def derived(folder: Path) -> dict[tuple[str, str], dict[str, tuple[float, float]]]:
    """Return the speed-ups of the step times in a folder."""
    found = {}
    for model, name in _FOLDERS.items():
        for machine, placements in _PLACEMENTS.items():
            with (folder / name / f"placements-{machine.lower()}.csv").open() as file:
                rows = list(csv.DictReader(file))
            times = [
                {float(row["local_bsz"]): float(row["step_time"]) for row in rows if row["placement"] == placement}
                for placement in placements
            ]
            largest, common = max(times[0]), max(set(times[0]) & set(times[1]) & set(times[2]))
            held = [times[0][largest] / _at(each, largest / more) for each, more in zip(times[1:], (2, 4), strict=True)]
            grown = [more * times[0][common] / each[common] for each, more in zip(times[1:], (2, 4), strict=True)]
            found[model, machine] = {
                "held": (round(held[0], 2), round(held[1], 2)),
                "grown": (round(grown[0], 2), round(grown[1], 2)),
            }
    return found


def _at(times: dict[float, float], batch: float) -> float:
    return float(np.interp(batch, sorted(times), [times[key] for key in sorted(times)]))


def main(folder: Path) -> int:
    """Print what the files say; 1 if it differs from `SPEEDS`."""
    found = derived(folder)
    for (model, machine), speeds in found.items():
        print(f"    ({model!r}, {machine!r}): {speeds},".replace("'", '"'))
    return int(found != SPEEDS)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
