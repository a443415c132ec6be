"""What frameworks measure, as the metrics of a report."""

import re
from collections.abc import Mapping
from typing import Any

from trainwright.errors import TrialMisuse, closest
from trainwright.train import Trial
from trainwright.train.assignment import as_number

__all__ = ["select_metrics"]

_TIMINGS = re.compile(r"epoch|.*_(runtime|per_second|compilation_time)")
"""What Hugging Face's Trainer puts among its metrics, though it measures the machine."""


def select_metrics(trial: Trial, measured: Mapping[str, Any], where: str, mend: str) -> dict[str, float]:
    """Return the numbers of `measured`. Raises `TrialMisuse` if an objective of the study is not among them."""
    numbers = {name: number for name, value in measured.items() if (number := as_number(value)) is not None}
    metrics = {name: number for name, number in numbers.items() if not _TIMINGS.fullmatch(name)}
    missing = [name for name in trial.assignment.metrics if name not in metrics]
    if missing:
        raise TrialMisuse(
            f"TrialCallback: {where} measured {', '.join(sorted(metrics)) or 'nothing'}, and the study's objective "
            f"{missing[0]} is not among them; {mend}{closest(missing[0], sorted(metrics))}"
        )
    return metrics
