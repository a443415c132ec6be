"""The cost model: seconds and bytes of candidate plans in columns, from the costs of blocks and of exchanges.

Gradients, and weights that are divided, travel beside computation: `exposed` counts of them only what no order could
hide, so that `Prices.total` is a lower bound; `exposure` finds the rest for the candidates that are left.
"""

from dataclasses import dataclass

import numpy as np

from trainwright.cluster import Cluster
from trainwright.plan.parallel.block_costs import BlockCosts, block_costs
from trainwright.plan.parallel.exposure import StageTimes, exposed_seconds
from trainwright.plan.parallel.footprint import MemoryFootprint, peak_bytes
from trainwright.plan.parallel.mesh import SCHEDULES, Floats, Ints, Mesh
from trainwright.plan.parallel.model_arrays import ModelArrays
from trainwright.plan.parallel.precision import Optimizer
from trainwright.plan.parallel.roofline import framework_seconds, layer_seconds
from trainwright.plan.parallel.strategies.pipeline import PipelineStages, bubble_slots, stages_of
from trainwright.plan.parallel.strategies.registry import STRATEGIES
from trainwright.plan.parallel.strategies.strategy import Exchange, StageLoad, all_seconds
from trainwright.plan.pipeline.partition import shortest_longest_parts

__all__ = ["Pricer", "Prices"]


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Prices:
    """Seconds of an iteration by what they go to, and bytes of the fullest device; one entry a candidate."""

    mesh: Mesh
    compute: Floats
    exchange: Floats
    """Exposed exchanges inside blocks."""
    transfer: Floats
    """Between stages."""
    alone: Floats
    """Exchanges of weights that nothing runs beside."""
    exposed: Floats
    """Of gradients and divided weights, at least."""
    bubble: Floats
    update: Floats
    """Of the weights, and adding up the gradients of micro-batches."""
    framework: Floats
    memory: MemoryFootprint
    costs: BlockCosts
    place: Ints
    """Row of `costs` of each candidate."""
    slowest: Floats
    """(candidates, blocks): runs of each block in the stage that takes longest."""
    load: StageLoad
    exchanges: tuple[Exchange, ...]
    """Of whole stages; those inside blocks are in `costs`."""
    seconds: tuple[Floats, ...]
    """Of one of each of them."""

    @property
    def total(self) -> Floats:
        """Seconds of an iteration, at least."""
        found: Floats = (
            self.compute
            + self.exchange
            + self.transfer
            + self.alone
            + self.exposed
            + self.bubble
            + self.update
            + self.framework
        )
        return found

    def stage_times(self, row: int) -> StageTimes:
        """Return what the event list of one candidate is made of."""
        mesh, place, costs = self.mesh, int(self.place[row]), self.costs
        inside = {name: np.zeros(costs.forward.shape[1]) for name in ("forward", "backward", "gradient")}
        number, seconds = 0, 0.0
        for exchange, took in zip(self.exchanges, self.seconds, strict=True):
            each = float(exchange.count[row] * took[row])
            if exchange.block is not None:
                inside[exchange.phase][exchange.block] += each
            elif exchange.overlaps and each:
                number, seconds = max(number, int(exchange.count[row])), seconds + each
        slots, every = mesh.microbatches_of(row), int(mesh.zero[row]) == 2
        # Counts are those of an iteration, which with ZeRO-2 has the buckets of every micro-batch.
        rounds = slots if every else 1
        return StageTimes(
            runs=self.slowest[row],
            forward=(costs.forward + costs.forward_exchange)[place],
            backward=(costs.backward + costs.backward_exchange)[place] + costs.again[mesh.recompute[row], place],
            gather_forward=inside["forward"],
            gather_backward=inside["backward"],
            scatter=inside["gradient"],
            buckets=number // rounds,
            bucket_seconds=seconds / number if number else 0.0,
            gradients=costs.trained[place],
            microbatches=slots,
            every=every,
        )

    def all_exchanges(self, row: int) -> list[tuple[Exchange, float]]:
        """Return the exchanges of a device of one candidate's heaviest stage, and how often an iteration has each."""
        place, slots = int(self.place[row]), float(self.mesh.microbatches_of(row))
        inside = [exchange.at(place) for exchange in self.costs.exchanges] + [entry.at(row) for entry in self.exchanges]
        found = []
        for item in inside:
            runs = 1.0 if item.block is None else slots * float(self.load.runs[row, item.block])
            if item.count[0] * runs > 0 and item.ranks[0] > 1:
                found.append((item, float(item.count[0]) * runs))
        return found

    def balance(self, row: int, counts: Ints) -> tuple[float, float]:
        """Return the seconds of the slowest stage of one candidate, and of the mean one, for a micro-batch."""
        times = self.stage_times(row)
        seconds = times.forward + times.backward
        stages = float(self.mesh.axis("pipeline")[row])
        return float(times.runs @ seconds), float(counts @ seconds) / stages


class Pricer:
    """Prices candidates for one model on one cluster; keeps how its chain is cut into stages."""

    def __init__(self, arrays: ModelArrays, cluster: Cluster, optimizer: Optimizer, *, most_parts: int = 1) -> None:
        self.arrays, self.cluster, self.optimizer = arrays, cluster, optimizer
        one = np.ones((1, len(arrays.layers)))
        ahead, back = layer_seconds(arrays, cluster, samples=np.ones(1), share=one, weights=one)
        seconds = np.repeat(arrays.per_block(ahead + back)[0], arrays.counts)
        edges = np.append(arrays.part_starts, arrays.runs)
        # Stages may begin at modules only: runs that lie between two of these go together.
        # Seconds of the parts between two places where a stage may begin.
        parts = np.add.reduceat(seconds, arrays.part_starts)
        most = max(1, min(most_parts, arrays.parts))
        self._cuts = [edges[ends] for ends in shortest_longest_parts(parts, most)]
        self._stages: dict[tuple[int, int], PipelineStages] = {}

    def stages(self, pipeline: int, chunks: int) -> PipelineStages:
        """Return the stages of a pipeline of so many, each of so many chunks."""
        key = pipeline, chunks
        if key not in self._stages:
            self._stages[key] = stages_of(self.arrays, self._cuts[pipeline * chunks - 1], chunks)
        return self._stages[key]

    def costs(self, ways: Mesh) -> BlockCosts:
        """Return what one run of each block takes and keeps in every way."""
        return block_costs(self.arrays, self.cluster, ways)

    def price(self, mesh: Mesh) -> Prices:
        """Return what every candidate comes to."""
        # Many candidates work on a micro-batch in the same way: each way is priced once.
        ways, place = mesh.inner()
        costs = self.costs(ways)
        again = costs.again[mesh.recompute, place]
        ahead = (costs.forward + costs.forward_exchange)[place]
        back = (costs.backward + costs.backward_exchange)[place] + again
        weights = costs.weights[place]
        slowest, heaviest = np.zeros_like(weights), np.zeros_like(weights)
        waiting, cut_bytes = np.zeros(mesh.rows), np.zeros(mesh.rows)
        parts = []
        for rows, stages in self.by_cut(mesh):
            times = ahead[rows] @ stages.runs.T, back[rows] @ stages.runs.T
            # The iteration follows its slowest stage; the exchanges of weights follow the one with most weights.
            both = times[0] + times[1]
            slowest[rows] = stages.runs[np.argmax(both, axis=1)]
            heaviest[rows] = stages.runs[np.argmax(weights[rows] @ stages.runs.T, axis=1)]
            # A slot of GPipe is the slowest forward plus the slowest backward pass, of 1F1B the slowest stage.
            gpipe = mesh.schedule[rows] == SCHEDULES.index("gpipe")
            waiting[rows] = np.where(gpipe, times[0].max(axis=1) + times[1].max(axis=1), both.max(axis=1))
            cut_bytes[rows] = self.arrays.scaled(stages.cut_bytes)
            some = mesh.take(rows)
            parts.append((rows, peak_bytes(self.arrays, self.optimizer, some, costs, place=place[rows], stages=stages)))
        trained, experts = costs.trained[place], costs.trained_experts[place]
        load = StageLoad(runs=heaviest, weights=weights, trained=trained, trained_experts=experts, cut_bytes=cut_bytes)
        exchanges = [
            exchange for strategy in STRATEGIES for exchange in strategy.communication(self.arrays, mesh, load)
        ]
        seconds = all_seconds(self.cluster, exchanges)
        # The device waits for the host to start a transfer between stages; other exchanges are issued ahead of it.
        seconds = [
            took + self.cluster.exchange_seconds * (exchange.operation == "send")
            for exchange, took in zip(exchanges, seconds, strict=True)
        ]
        slots = mesh.microbatches.astype(np.float64)
        # Blocks of the slowest stage, once for every micro-batch, with what recomputation runs again.
        compute = slots * (slowest * ((costs.forward + costs.backward)[place] + again)).sum(axis=1)
        work_ahead, work_back = (slowest * ahead).sum(axis=1), (slowest * back).sum(axis=1)
        transfer, alone, exposed = _exposed(mesh, exchanges, seconds, load=load, ahead=work_ahead, back=work_back)
        # Candidates were priced by how they cut the chain; their bytes come back in the order of the mesh.
        memory = MemoryFootprint.join(parts, mesh.rows)
        updated = memory.updated_elements * self.optimizer.moved_bytes(self.arrays.precision)
        # The gradients of a micro-batch but the first are added to those there are: two read, one written. A measured
        # pass does that.
        shards = np.where(mesh.zero >= 2, mesh.shard, 1)
        added = 3 * self.arrays.precision.gradient_bytes * (heaviest * trained).sum(axis=1) / shards
        updated += (slots - 1) * added * (self.arrays.profile.origin != "measured")
        bandwidth = self.cluster.device.reached_bandwidth
        return Prices(
            mesh=mesh,
            compute=compute,
            # The same work with the exchanges inside its blocks, less the work alone.
            exchange=np.maximum(0.0, slots * (work_ahead + work_back) - compute),
            transfer=transfer,
            alone=alone,
            exposed=exposed,
            bubble=bubble_slots(mesh) * waiting,
            update=updated / bandwidth if bandwidth else np.zeros(mesh.rows),
            framework=self._framework(
                mesh, slowest, busy=work_ahead + work_back, whole=(ahead + back) @ self.arrays.counts
            ),
            memory=memory,
            costs=costs,
            place=place,
            slowest=slowest,
            load=load,
            exchanges=tuple(exchanges),
            seconds=tuple(seconds),
        )

    def exposed(self, prices: Prices, row: int) -> float:
        """Return the seconds that one candidate waits for gradients and divided weights.

        Where FSDP was measured, on processors, each of its exchanges is waited for where it is called.
        """
        waits = int(prices.mesh.zero[row]) == 3 and "fsdp" in self.cluster.runtime_seconds
        beside = 0.0 if waits else self.cluster.overlap
        return max(float(prices.exposed[row]), exposed_seconds(prices.stage_times(row), beside))

    def _framework(self, mesh: Mesh, runs: Floats, *, busy: Floats, whole: Floats) -> Floats:
        """Return the seconds of an iteration that neither layers nor exchanges explain.

        Of a micro-batch layers take `busy` in the slowest stage and `whole` in all. Stages that are equal, as those
        measured, wait for each other, now one and now the other. The slowest of others waits less, by what they are
        done before it, and at least as long as stages that compute next to nothing.
        """
        arrays, cluster = self.arrays, self.cluster
        launches = arrays.per_block(arrays.launches)
        share = runs @ launches / max(1.0, float(arrays.counts @ launches))
        passes = mesh.microbatches + bubble_slots(mesh)
        a_pass = share * framework_seconds(arrays, mesh.micro.astype(np.float64))
        stages, gpipe = mesh.axis("pipeline"), mesh.schedule == SCHEDULES.index("gpipe")
        together = mesh.degrees.prod(axis=1) > stages
        # What a measured pass takes beyond its layers, in every pass that the stage makes or waits for.
        found: Floats = cluster.overhead_seconds + passes * a_pass
        one = busy + a_pass
        # By how much the slowest stage takes longer than the mean of the others.
        earlier = busy - (whole - busy) / np.maximum(1, stages - 1)
        sharded = (mesh.zero == 3) & (mesh.shard > 1)
        for runtime, chosen, times, per_pass, slack in (
            ("step", together & ~sharded, 1.0, mesh.microbatches * one, 0.0),
            ("fsdp", sharded, passes, one, 0.0),
            ("gpipe", (stages > 1) & gpipe, passes, one, earlier),
            ("1f1b", (stages > 1) & ~gpipe, passes, one, earlier),
        ):
            if runtime in cluster.runtime_seconds:
                known = cluster.runtime_seconds[runtime]
                longer = np.interp(per_pass, cluster.pass_seconds, known)
                longer = np.maximum(longer - slack, np.minimum(longer, known[0]))
                found += np.where(chosen, times * longer, 0.0)
        return found

    def by_cut(self, mesh: Mesh) -> list[tuple[Ints, PipelineStages]]:
        """Return candidates by how they cut the chain."""
        # Chunks are 8 at most, so that 64 keeps both numbers apart in one key.
        keys = mesh.axis("pipeline") * 64 + mesh.chunks
        order = np.argsort(keys, kind="stable")
        different, starts = np.unique(keys[order], return_index=True)
        groups = np.split(order, starts[1:])
        return [(rows, self.stages(*divmod(int(key), 64))) for key, rows in zip(different, groups, strict=True)]


def _exposed(
    mesh: Mesh, exchanges: list[Exchange], seconds: list[Floats], *, load: StageLoad, ahead: Floats, back: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return seconds of transfers between stages, of weights alone, and of gradients that nothing can hide."""
    transfer, alone, once = np.zeros(mesh.rows), np.zeros(mesh.rows), np.zeros(mesh.rows)
    hidden = {"forward": np.zeros(mesh.rows), "backward": np.zeros(mesh.rows), "gradient": np.zeros(mesh.rows)}
    sends = np.maximum(1, mesh.microbatches * mesh.chunks)
    for exchange, took in zip(exchanges, seconds, strict=True):
        each = exchange.count * took
        if exchange.operation == "send":
            # The first micro-batch has p - 2 more transfers on its way than a stage of its own makes.
            transfer += each * (sends + np.maximum(0, mesh.axis("pipeline") - 2)) / sends
        elif exchange.block is not None:
            hidden[exchange.phase] += each * load.runs[:, exchange.block]
        elif exchange.overlaps:
            once += each
        else:
            alone += each
    slots = mesh.microbatches.astype(np.float64)
    # Weights that are gathered and gradients that are scattered hide behind the computation of their own phase.
    every = np.maximum(0.0, hidden["forward"] - ahead)
    every += np.maximum(0.0, hidden["backward"] + hidden["gradient"] - back)
    # Gradients of a whole iteration are complete during the last backward pass only (of ZeRO-2 during each).
    windows = np.where(mesh.zero == 2, slots, 1.0)
    return transfer, alone, np.maximum(0.0, once - windows * back) + slots * every
