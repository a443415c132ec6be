"""The table of a ranking: seconds, memory, the speeds that training runs are compared by, and what limits the plans."""

import math
from dataclasses import asdict
from typing import Any

from trainwright.cli.command import print_rows, shorten, shorten_list, size
from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.model.profile import Profile
from trainwright.plan import Forecast
from trainwright.plan.forecast import Ranking
from trainwright.plan.parallel.precision import precision_of
from trainwright.report.formatting import count

__all__ = ["SpeedOf", "show_ranking"]

_LEAST_SHOWN = 1e-3
"""Of an iteration, that some part takes at least to have a column."""


class SpeedOf:
    """Speeds of the plans of one model on one cluster.

    MFU counts the operations of the model itself, not those of recomputation, and takes the device's peak in the
    precision of the activations.
    """

    def __init__(self, profile: Profile, cluster: Cluster) -> None:
        self._cluster = cluster
        work = sum(layer.forward_flops + layer.backward_flops for layer in profile.layers)
        self._flops = work / profile.batch
        # A sample of a transformer is a sequence of tokens.
        self._positions = max((block.transformer.sequence for block in profile.blocks if block.transformer), default=0)

    def columns(self, plan: Forecast) -> dict[str, str]:
        """Return a plan's speeds as text, by the names of their columns."""
        found = self.describe(plan)
        tokens, share = found["tokens_per_second"], found["mfu"]
        speeds = {"samples/s": found["samples_per_second"]}
        if tokens is not None:
            speeds = {"tokens/s": tokens, "tokens/s a device": tokens / plan.devices}
        return {
            **{name: f"{speed:.3g}" if speed < 1e4 else f"{speed:,.0f}" for name, speed in speeds.items()},
            "TFLOP/s a device": f"{found['tflops_per_device']:.3g}",
            "MFU": "-" if share is None else f"{100 * share:.0f} %",
        }

    def describe(self, plan: Forecast) -> dict[str, Any]:
        """Return a plan's speeds by name; None for what the model or the device does not say."""
        rate = plan.batch / plan.seconds_per_iteration
        speed = rate * self._flops / plan.devices
        # Without a measured or published peak there is no share of it.
        peak = self._cluster.device.flops.get(precision_of(plan.precision).flops)
        return {
            "samples_per_second": rate,
            "tokens_per_second": rate * self._positions if self._positions else None,
            "tflops_per_device": speed / 1e12,
            "mfu": speed / peak if peak else None,
        }

    def samples_of(self, tokens: float) -> int:
        """Return how many samples have so many tokens."""
        if not self._positions:
            raise InputError("--tokens: got a model whose samples are no sequences; allowed: --samples")
        return math.ceil(tokens / self._positions)


def show_ranking(number: int, ranking: Ranking, *, top: int, samples: int | None, speeds: SpeedOf) -> None:
    """Print the table of one number of devices, the best plan's reasons, and what is left out."""
    print(f"\nat most {count(number, 'device')}\n")
    # Parts of an iteration that no plan has to speak of would be columns of zeros.
    shown = [(asdict(plan.breakdown), plan.seconds_per_iteration) for plan in ranking[:top]]
    parts = [name for name in shown[0][0] if any(found[name] > _LEAST_SHOWN * total for found, total in shown)]
    rows = [
        {
            "strategy": plan.strategy + " =" * plan.within_error_of_best + " *" * bool(plan.refusal),
            "divided": _describe_division(plan),
            **({"nodes": shorten_list(plan.nodes)} if plan.nodes else {}),
            "micro": plan.micro_batch,
            "s/iteration": shorten(plan.seconds_per_iteration),
            "90 %": " - ".join(map(shorten, plan.interval)),
            **{name: shorten(getattr(plan.breakdown, name)) for name in parts},
            "memory": size(plan.reserved_bytes),
            **speeds.columns(plan),
            **({} if samples is None else {name: shorten(hours) for name, hours in _hours(plan, samples).items()}),
        }
        for plan in ranking[:top]
    ]
    print_rows(rows, left=2)
    if any(plan.within_error_of_best for plan in ranking[:top]):
        print("= : shares more than half of its interval with the first")
    for refusal in dict.fromkeys(plan.refusal for plan in ranking[:top] if plan.refusal):
        print(f"* : priced, but not set up by trial.prepare(plan=...): {refusal}")
    if len(ranking) > top:
        print(f"{len(ranking) - top} more strategies are slower; --top shows them")
    print(f"\n{_show_winner(ranking)}")
    for nodes, bound in dict.fromkeys((plan.nodes, plan.bound_by) for plan in ranking[:top] if plan.nodes):
        print(f"  nodes {shorten_list(nodes)}: " + (f"each counts as one with {bound}" if bound else "the best"))
    # What limits the first plan, and of others what limits none before them.
    said: set[str] = set()
    for plan in ranking[:top]:
        for each in plan.bottlenecks[:2]:
            if each.id not in said:
                print(f"  {plan.strategy}: {each.id}: {each.sentence}; try {each.advice}")
        said |= {each.id for each in plan.bottlenecks[:2]}
    # Of what the model has no parts for (convolutions of a transformer) only the JSON speaks.
    refused = [each for each in ranking.rejected if each.allowed != "1"]
    if refused:
        print("\nleft out:")
        for one in refused:
            print(f"  {one.strategy}: {one.reason}; {one.value}, allowed: {one.allowed}")


def _hours(plan: Forecast, samples: int) -> dict[str, float]:
    hours = plan.device_hours(samples)
    return {"hours": hours / plan.devices, "device-hours": hours}


def _show_winner(ranking: Ranking) -> str:
    """Return why the first is first: the part of an iteration in which it gains most over the second."""
    best = ranking[0]
    if len(ranking) == 1:
        return f"{best.strategy} is the only strategy that fits"
    second, parts, others = ranking[1], asdict(best.breakdown), asdict(ranking[1].breakdown)
    # The part of an iteration in which the first gains most is why it is the first.
    name = max(parts, key=lambda part: others[part] - parts[part])
    ratio = second.seconds_per_iteration / best.seconds_per_iteration
    if others[name] <= parts[name] or ratio <= 1:
        return f"{best.strategy} comes first: as fast as {second.strategy}, with fewer devices or less memory"
    return (
        f"{best.strategy} comes first: {second.strategy} takes {ratio:.3g} times as long, most of it in {name} "
        f"({shorten(parts[name])} against {shorten(others[name])} s)"
    )


def _describe_division(plan: Forecast) -> str:
    """Return degrees above one, and the other choices of a plan, in a few characters."""
    # Degrees of one divide nothing, and are left out.
    parts = [f"{name}={degree}" for name, degree in asdict(plan.degrees).items() if degree > 1]
    parts += [f"shard={plan.shard}"] if 1 < plan.shard < plan.degrees.data else []
    parts += ["sequence"] if plan.sequence else []
    parts += [plan.context_by] if plan.context_by else []
    parts += [plan.schedule + (f"x{plan.chunks}" if plan.chunks > 1 else "")] if plan.schedule else []
    again = plan.recompute if plan.recompute == "offload" else f"{plan.recompute} recompute"
    parts += [again] if plan.recompute != "none" else []
    return " ".join(parts) or "-"
