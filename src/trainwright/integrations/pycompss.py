"""The PyCOMPSs engine: each slot is a task, the member of an engine, which runs one trial after another.

After Tejedor et al., PyCOMPSs: parallel computational workflows in Python (IJHPCA 31 (2017)). A task that reports,
stops and is guarded like the processes of every other engine needs no rungs to end at, and no trial waits for another.
"""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from trainwright.engine.nodes.engine import own_hosts
from trainwright.engine.nodes.member_engine import Member, MemberEngine
from trainwright.engine.process.listener import WorkerListener
from trainwright.engine.protocol import TrainFunction
from trainwright.errors import EngineError, MissingExtra
from trainwright.validators import integer

__all__ = ["PyCOMPSs"]


class TaskMember(Member):
    """The member of a slot that is a task; `future` is what PyCOMPSs gave for it."""

    future: Any = None


@dataclass(eq=False, kw_only=True)
class PyCOMPSs(MemberEngine):
    """Run up to `slots` trials at once in PyCOMPSs tasks, each on `cpus` processors and `gpus` GPUs of a node.

    A task holds its units from `open` to `close`; it starts and guards the processes of trials on its node, which
    report to this process by TCP at once. A trial of several devices is as many processes, on as many slots. A task
    that is lost is started again. A run longer than `timeout_seconds`, or a process with more resident memory than
    `memory_bytes`, is asked to end and killed `grace_seconds` later; a slot on which nothing starts within
    `start_seconds` is lost. Raises `EngineError` without the runtime, in plain `python`.
    """

    slots: Annotated[int, integer(minimum=1), "trials at once"] = 1
    cpus: Annotated[int, integer(minimum=1), "processors of a slot"] = 1
    gpus: Annotated[int, integer(minimum=0), "GPUs of a slot"] = 0

    def check_together(self) -> None:
        """Refuse to be where PyCOMPSs is not."""
        if find_spec("pycompss") is None:
            raise MissingExtra(
                "tw.PyCOMPSs needs pycompss, which needs Java and compiles its runtime: pip install pycompss; "
                f"or run the same program on tw.Local(workers={self.slots})"
            )
        self._gpu = self.gpus > 0
        self._clear()

    @property
    def slots_per_node(self) -> int:
        """One: PyCOMPSs places each task by itself."""
        return 1

    def _name_device(self, slot: int) -> str:
        return f"compss:{slot}"

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Start a task for each slot."""
        # The task's constraints are read from here when it is first imported.
        os.environ["TRAINWRIGHT_CPUS"], os.environ["TRAINWRIGHT_GPUS"] = str(self.cpus), str(self.gpus)
        self._listener = WorkerListener("")
        self._number_slots([1] * self.slots)
        for place in range(self.slots):
            self._members.append(self._start_member(place))
        super().open(train, directory)

    def _start_member(self, place: int) -> TaskMember:
        from trainwright.integrations._pycompss_task import SEQUENTIAL, here, serve_slot

        listener = self._require_listener()
        member = TaskMember(place, listener, name=self._name_device(place))
        member.future = serve_slot(here(), own_hosts(), listener.address[1], member.token, str(Path.cwd()))
        if member.future == SEQUENTIAL:
            super().close()
            raise EngineError(
                "tw.PyCOMPSs: its tasks run in this very process, for the runtime of PyCOMPSs is not there; start the "
                f"program with runcompss, or run it on tw.Local(workers={self.slots})"
            )
        return member

    def _lose_member(self, member: Member) -> None:
        super()._lose_member(member)
        # One whose process never came is of no use.
        if member.arrived is not None:
            self._members[member.place] = self._start_member(member.place)

    def close(self) -> None:
        """End whatever runs, and wait for the tasks."""
        from pycompss.api.api import compss_wait_on

        futures = [member.future for member in self._members if isinstance(member, TaskMember)]
        super().close()
        for future in futures:
            compss_wait_on(future)
