"""A worker process on some node of a Ray cluster as the driver sees it."""

import time
from dataclasses import replace
from typing import Any

from trainwright.engine.process.listener import LineWorker, WorkerListener
from trainwright.engine.protocol import Died, Outcome, Raised

__all__ = ["RemoteWorker"]

_LAST_WORDS_SECONDS = 15.0
"""How long an actor may take to say how its process ended."""


class RemoteWorker(LineWorker):
    """What `Gang` needs of a worker process; its actor guards the process, and `ending` is what that will say of it.

    `actor` is the handle of a `DeviceHost`, `ray` the module; `actor_lost` says that the slot needs another actor,
    `ended` that the process or its actor has ended: the engine looks for that.
    """

    def __init__(self, ray: Any, actor: Any, slot: int, listener: WorkerListener) -> None:
        super().__init__(slot, listener)
        self.actor = actor
        self.actor_lost = False
        self.ending: Any = None
        self.ended = False
        self._ray = ray

    def terminate(self, failure: str, message: str, grace_seconds: float) -> None:
        """Have the process asked to end, and killed with its children after `grace_seconds`."""
        if self._verdict is None:
            self._verdict = failure, message
            # The actor kills the process itself; the driver steps in only if that hangs.
            self._kill_at = time.monotonic() + grace_seconds + _LAST_WORDS_SECONDS
            self.actor.terminate.remote(failure, message, grace_seconds)

    def enforce(self) -> None:
        """Kill the actor if it has not killed the process long after its grace was over."""
        if time.monotonic() > self._kill_at:
            self._ray.kill(self.actor)

    def outcome(self) -> Outcome:
        """Return what the end of the process means for its trial."""
        self._listener.forget(self)
        try:
            ended: Outcome = self._ray.get(self.ending, timeout=_LAST_WORDS_SECONDS)
            outcome = replace(ended, seconds=self.seconds)
        except self._ray.exceptions.GetTimeoutError:
            self._ray.kill(self.actor)
            self.actor_lost = True
            outcome = Died(
                why="the line to the worker process broke, and its actor did not answer", seconds=self.seconds
            )
        except self._ray.exceptions.OutOfMemoryError:
            self.actor_lost = True
            outcome = Died(why="Ray killed the actor because its node ran out of memory", seconds=self.seconds)
        except self._ray.exceptions.RayError as error:
            self.actor_lost = True
            reason = _line_of(error)
            why = f"the trial's actor is gone: {reason}"
            outcome = Died(why=why, blame="node has died" not in reason, seconds=self.seconds)
        # The engine had asked for this end: its reason counts.
        if self._verdict is not None and isinstance(outcome, Died):
            return Raised(failure=self._verdict[0], message=self._verdict[1], seconds=outcome.seconds)
        return outcome

    def close(self, *, kill: bool) -> None:
        """End the process: at once, or by closing its line."""
        self._listener.forget(self)
        if self._line is not None:
            self._line.close()
        if kill and not self._closed:
            self.actor.stop.remote()
        self._closed = True


def _line_of(error: Exception) -> str:
    """Return the sentence of an error of Ray's that says most: the first is about tasks, the reason comes later."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    chosen = next((line for line in lines if "is dead because" in line), lines[0] if lines else type(error).__name__)
    return chosen.partition(". ")[0]
