"""All instances of a plan: what their processes are told, who is lost, and how they leave."""

import math
import sys
from collections.abc import Collection
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trainwright.ensemble import Ensemble, Member
from trainwright.serve.anew import placed_anew
from trainwright.serve.arena import Arena, Layout
from trainwright.serve.matrix import Instance, Plan
from trainwright.serve.memory import MemoryModel
from trainwright.serve.posts import Post, State, UnitLine
from trainwright.serve.settings import Settings
from trainwright.serve.supervise import Health, WorkerProcess
from trainwright.serve.units import Unit

__all__ = ["Pool", "credits_of"]

_LINE_HOLDS = 128


class Pool:
    """All posts of a plan, and what their processes are told."""

    def __init__(self, *, ensemble: Ensemble, plan: Plan, settings: Settings, layout: Layout, runner: str) -> None:
        self.trials = [member.trial for member in ensemble.members]
        self.plan = plan
        self._ensemble, self._layout, self._runner, self._settings = ensemble, layout, runner, settings
        self.posts = [self._post(instance) for instance in plan.instances]
        self.lines = [UnitLine(unit=unit, posts=self.posts_of(unit)) for unit in plan.units]

    def anew(self, unit: Unit, lost: Collection[Instance]) -> Plan:
        """Return the plan with a lost unit elsewhere, or raise AllocationError; it changes nothing."""
        memory = MemoryModel.assumed(self._ensemble) if self.plan.memory is None else self.plan.memory
        return placed_anew(self.plan, unit, lost, memory)

    def change(self, plan: Plan, unit: Unit) -> list[Post]:
        """Take a plan in which a unit was placed anew; return its posts, which join its line when they are built."""
        self.plan = plan
        posts = [self._post(instance) for instance in plan.instances if instance.unit == unit]
        self.posts += posts
        return posts

    def _post(self, instance: Instance) -> Post:
        return Post(
            instance=instance,
            health=Health(settings=self._settings),
            credits=credits_of(instance, self._layout.rows),
        )

    def line_of(self, post: Post) -> UnitLine:
        """Return the line that a post takes its work from."""
        return next(line for line in self.lines if line.unit == post.instance.unit)

    def posts_of(self, unit: Unit) -> list[Post]:
        """Return the posts of a unit, those that were given up and those that are not built yet too."""
        return [post for post in self.posts if post.instance.unit == unit]

    def lost(self) -> dict[int, str]:
        """Return the members that nobody computes any more, and why."""
        return {member: line.why for line in self.lines if line.lost for member in line.unit.members}

    def laid_out(self, output_shape: tuple[int, ...]) -> Layout:
        """Return the layout of the memory, now that it is known what members answer."""
        return replace(self._layout, output_shape=output_shape)

    def open(self, post: Post, arena: Arena, now: float) -> "Connection[Any, Any]":
        """Start a process for a post, and return the line to it."""
        instance = post.instance
        members = [self._ensemble.members[place] for place in instance.unit.members]
        told = {
            "runner": self._runner,
            "kind": instance.unit.kind,
            "places": list(instance.unit.members),
            "members": [_told(member) for member in members],
            "device": "cpu" if instance.device.kind == "cpu" else instance.device.name,
            "cores": list(instance.device.cores),
            "threads": instance.threads,
            "batch": instance.batch,
            "input_shape": list(self._layout.input_shape),
            "input_dtype": self._layout.input_dtype,
            "path": [path or str(Path.cwd()) for path in sys.path],
        }
        post.process = WorkerProcess(arena, told)
        post.state, post.heard, post.said = State.STARTING, now, ""
        return post.process.line

    def close(self) -> None:
        """Let all processes leave, at the same time."""
        processes = [post.process for post in self.posts if post.process is not None]
        for process in processes:
            process.line.close()
        for post in self.posts:
            if post.process is not None:
                post.process.leave()
                post.process = None


def credits_of(instance: Instance, segment_rows: int) -> int:
    """Return how many segments an instance may have at once: those of one batch, and as many at hand.

    Never more than its line holds while the instance computes and reads nothing: about 270 messages on Linux.
    """
    return min(_LINE_HOLDS, 2 * math.ceil(instance.batch / segment_rows))


def _told(member: Member) -> dict[str, Any]:
    return {
        "folder": str(member.folder.absolute()),
        "trial": member.trial,
        "digests": dict(member.digests),
        "trust": member.trust,
    }
