"""The devices that an engine holds: a placement group a node, pinned to it, with a bundle for each device.

All devices are held for as long as the engine is open, so a trial of several devices has its whole gang at once or is
not started: no other job of the cluster can come between. Ray itself refuses a second actor in a bundle.
"""

import contextlib
import math
import time
from typing import Any

from trainwright.engine.ray.cluster import SlotMap, living_nodes
from trainwright.errors import EngineError

__all__ = ["PlacementGroups"]


class PlacementGroups:
    """The placement groups of an engine, and which slots are gone with their nodes.

    Groups and actors are named `prefix` + something new for each engine: the prefix is the study's.
    """

    def __init__(self, ray: Any, slot_map: SlotMap, *, prefix: str, own: str, cpus_per_device: int) -> None:
        self.slot_map = slot_map
        self.gone: frozenset[int] = frozenset()
        self.prefix = prefix
        self._own = prefix + own
        self._ray = ray
        self._named = 0
        self._suspects: set[str] = set()
        bundle = {"CPU": float(cpus_per_device), **({"GPU": 1.0} if slot_map.gpu else {})}
        self._bundle = bundle
        self._groups = [
            ray.util.placement_group(
                [bundle] * slot_map.slots_per_node,
                strategy="STRICT_PACK",
                name=f"{self._own}-node-{number}",
                bundle_label_selector=[{"ray.io/node-id": node.id}] * slot_map.slots_per_node,
            )
            for number, node in enumerate(slot_map.nodes)
        ]

    def wait(self, seconds: float) -> None:
        """Wait until all groups are there. Raises `EngineError` naming a node that others hold."""
        deadline = time.monotonic() + seconds
        for node, group in zip(self.slot_map.nodes, self._groups, strict=True):
            if not group.wait(max(1, math.ceil(deadline - time.monotonic()))):
                # Rounded up: Ray drops fractions of seconds.
                self.release()
                raise EngineError(
                    f"tw.Ray: {self.slot_map.slots_per_node} devices of {node.name} were not free within "
                    f"start_seconds={seconds:g}; end what else runs on the cluster, or ask for fewer (workers=)"
                )

    def actor(self, host: Any, slot: int) -> tuple[str, Any]:
        """Start an actor of a slot; return its name and handle."""
        node, bundle = divmod(slot, self.slot_map.slots_per_node)
        self._named += 1
        name = f"{self._own}-slot-{slot}-{self._named}"
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self._groups[node], bundle)
        options = host.options(
            name=name,
            num_cpus=self._bundle["CPU"],
            num_gpus=self._bundle.get("GPU", 0),
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=strategy,
        )
        return name, options.remote()

    def look(self) -> None:
        """See which nodes are gone, or have lost their group."""
        living = {node.id for node in living_nodes(self._ray)}
        groups = self._ray.util.placement_group_table()
        for number, (node, group) in enumerate(zip(self.slot_map.nodes, self._groups, strict=True)):
            state = groups.get(group.id.hex(), {}).get("state", "REMOVED")
            if node.id not in living or state != "CREATED":
                first = number * self.slot_map.slots_per_node
                self.gone |= set(range(first, first + self.slot_map.slots_per_node))

    def sweep(self, actors: set[str]) -> list[str]:
        """Remove what carries the study's name and belongs to no living engine; `actors` are ours. Return the names.

        Another engine of the same study lives as long as it has groups: Ray removes those of a driver that has died.
        What is found is removed when it is found again, so that nothing is taken for lost which is only on its way.
        """
        groups = {
            id_: entry["name"]
            for id_, entry in self._ray.util.placement_group_table().items()
            if entry["name"].startswith(self.prefix) and entry["state"] != "REMOVED"
        }
        others = {self._session(name) for name in groups.values() if "-node-" in name} - {self._session(self._own)}
        for group in self._groups:
            groups.pop(group.id.hex(), None)
        lost_groups = {name for name in groups.values() if self._session(name) not in others}
        lost_actors = {
            entry["name"]: entry["namespace"]
            for entry in self._ray.util.list_named_actors(all_namespaces=True)
            if entry["name"].startswith(self.prefix)
            and entry["name"] not in actors
            and self._session(entry["name"]) not in others
        }
        found = {*lost_groups, *lost_actors}
        removed = sorted(found & self._suspects)
        self._suspects = found - set(removed)
        for name in removed:
            with contextlib.suppress(ValueError):
                # It has ended by itself.
                if name in lost_actors:
                    self._ray.kill(self._ray.get_actor(name, namespace=lost_actors[name]))
                else:
                    self._ray.util.remove_placement_group(self._ray.util.get_placement_group(name))
        return removed

    def _session(self, name: str) -> str:
        return name.removeprefix(self.prefix).partition("-")[0]

    @property
    def suspects(self) -> bool:
        """Whether the last sweep found something that the next one will remove."""
        return bool(self._suspects)

    def release(self) -> None:
        """Remove the groups, and with them whatever still runs there."""
        for group in self._groups:
            self._ray.util.remove_placement_group(group)
        self._groups = []
