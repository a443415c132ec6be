"""Turns that move work: rows into slots, slots to workers that have room, reports into answers.

Queues, slots and posts are touched only by who has the turn, so none of them has a lock. A thread of its own takes a
turn whenever a worker reports or a timer is due, and it alone touches processes. Other threads leave calls in an inbox,
and who admits a request while nobody has the turn takes it, so that rows reach an idle worker without waking a thread
in between. What is finished is answered at the end of a turn, when the workers have their work; large sums are left to
the combiner's thread.
"""

import contextlib
import math
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from trainwright.errors import NotReady, Overloaded, ServeError, TrainwrightError
from trainwright.serve.arena import Arena, Layout
from trainwright.serve.batching import Request
from trainwright.serve.combiner import Combiner, Finished
from trainwright.serve.matrix import Plan
from trainwright.serve.messages import DONE, DROPPED, Report, decode
from trainwright.serve.pool import Pool
from trainwright.serve.posts import Post, State, UnitLine
from trainwright.serve.segments import LATE, Segments
from trainwright.serve.settings import Settings

__all__ = ["Dispatcher"]

_TICK_SECONDS = 0.25
_WATCH_SECONDS = 0.05  # between looks at the processes; what they say is heard at once
_SMALL = 1 << 16  # predictions that are combined at once: waking a thread takes longer than their sum
_ENDED = "service: has ended; nothing is answered any more"


class Dispatcher(threading.Thread):
    """Serves requests on the posts of a pool, from `start` until `stop`."""

    def __init__(self, *, pool: Pool, arena: Arena, combiner: Combiner, settings: Settings, layout: Layout) -> None:
        super().__init__(name="trainwright-dispatch", daemon=True)
        self._pool, self._arena, self._combiner, self._settings = pool, arena, combiner, settings
        self._layout = layout  # until the first worker says what members answer, without their shape
        self._segments = Segments(slots=layout.slots, arena=arena, settings=settings, hand_over=self._hand_over)
        self._finished: list[tuple[Request, Finished]] = []  # in this turn
        self._inbox: deque[Callable[[], None]] = deque()
        self._turns = threading.Lock()  # of all that is not behind the gate
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._asleep = False
        self._watched = self._due = -math.inf  # the last look at the processes, and when the next turn is due
        self._gate = threading.Lock()  # of the three numbers below
        self._entering = 0  # rows that were admitted and are not among the waiting yet
        self.open = 0  # requests that were admitted and not answered
        self.shed = 0  # requests that were refused because too many rows waited
        self.over = False  # nothing is admitted any more
        self.rate = 1.0  # rows a second that the slowest unit can compute, by what its workers said at start
        self.moves: list[
            dict[str, Any]
        ] = []  # of lost units to other devices: whence, whither, why, and what became of it
        self._homeless: deque[UnitLine] = deque()  # lost units that are to be placed anew, one after the other
        self._placing = False
        self.started = threading.Event()
        self.refusal: TrainwrightError | None = None  # why it could not start, or failed
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ, None)

    # From other threads.

    def admit(self, request: Request, limit: int) -> None:
        """Queue a request, or raise Overloaded if others wait and its rows would make them more than `limit`."""
        with self._gate:
            if self.over:
                raise NotReady(_ENDED, 1.0)
            waiting = self.rows
            if waiting and waiting + request.rows > limit:
                self.shed += 1
                retry = min(30.0, max(0.1, waiting / self.rate))
                raise Overloaded(
                    f"service: {waiting} rows wait and {request.rows} more were given; allowed: {limit}; try again",
                    retry,
                )
            self._entering += request.rows
            self.open += 1
            self._inbox.append(lambda: self._admitted(request))  # within the gate, so that the thread's end sees it
        if self._turns.acquire(blocking=False):
            try:
                self._extra_turn()
            finally:
                self._turns.release()
        else:
            self._rouse()

    def stop(self) -> None:
        """End all workers and the thread; requests under way are refused."""
        if self.is_alive():
            self._call(self._stopped)
            self.join()

    @property
    def rows(self) -> int:
        """Rows that wait for a slot."""
        return self._segments.batcher.rows + self._entering

    def state(self) -> dict[str, Any]:
        """Return counts and what is in use; may be a moment old."""
        counts, accumulator = self._segments.counts, self._segments.accumulator
        return {
            **{
                name: counts[name] for name in ("requests", "rows", "segments", "degraded", "late", "restarts", "moved")
            },
            "duplicates": accumulator.duplicates,
            "stale": accumulator.stale,
            "shed": self.shed,
            "slots": len(accumulator.slots),
            "slots_used": len(accumulator.slots) - accumulator.free,
            "open": self.open,
            "moves": list(self.moves),
        }

    def _call(self, action: Callable[[], None]) -> None:
        self._inbox.append(action)
        self._rouse()

    def _rouse(self) -> None:
        """End the thread's sleep."""
        if self._asleep:
            self._asleep = False
            with contextlib.suppress(BlockingIOError):
                os.write(self._waker, b"\0")

    def _extra_turn(self) -> None:
        """Take in what was admitted and send it out, for the thread that admitted it."""
        due = self._due
        try:
            self._settle()
            now = time.monotonic()
            self._segments.expire(now)
            self._work(now)
        except Exception as error:  # noqa: BLE001 - the thread fails of it, and tells everybody
            self._inbox.append(partial(_raised, error))
            due = math.inf
        if self._due < due:
            self._rouse()

    # The thread.

    def run(self) -> None:
        """Serve until stopped."""
        refusal: TrainwrightError = NotReady(_ENDED, 1.0)
        try:
            while not self.over:
                self._turn()
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer must be told
            refusal = self.refusal = ServeError(f"service: its dispatcher failed ({type(error).__name__}: {error})")
        finally:
            with self._gate:
                self.over = True
            with self._turns:
                while self._inbox:
                    with contextlib.suppress(Exception):  # that of an extra turn: there is nothing left to fail
                        self._inbox.popleft()()
                self._segments.finish_all(refusal)
                self._answer()
            self._selector.close()
            self._pool.close()
            os.close(self._wake)
            os.close(self._waker)
            self.started.set()

    def _turn(self) -> None:
        self._asleep = True
        events = self._selector.select(0.0 if self._inbox else max(0.0, self._due - time.monotonic()))
        self._asleep = False
        with self._turns:
            for key, _ in events:
                if key.data is None:
                    os.read(key.fd, 4096)
                else:
                    self._heard(key.data)
            self._settle()
            now = time.monotonic()
            self._segments.expire(now)
            if now >= self._watched + _WATCH_SECONDS:
                self._watched = now
                self._watch(now)
            self._work(now)

    def _settle(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _work(self, now: float) -> None:
        """Give workers what they have room for, then answer what is finished."""
        self._form(now)
        for line in self._pool.lines:
            line.send(now)
        self._answer()
        self._due = now + self._until_next(now)

    def _answer(self) -> None:
        finished, self._finished = self._finished, []
        small = sum(one.size for _, told in finished for one in told.predictions.values()) <= _SMALL
        for request, told in finished:
            if small and not self.over:
                self._combiner.answer(told)
                self._released(request)
            else:
                self._combiner.put(told, partial(self._call, partial(self._released, request)))

    def _until_next(self, now: float) -> float:
        due = [now + _TICK_SECONDS, self._segments.next_deadline]
        watch = self._watched + _WATCH_SECONDS
        due += [max(post.restart_at, watch) for post in self._pool.posts if post.state is State.WAITING]
        if self._settings.max_delay_ms:  # what is ripe and still waits, waits for room, of which a report will tell
            ripe = (
                head.admitted + self._settings.max_delay_ms / 1e3 for _, head, _ in self._segments.batcher.waiting()
            )
            due += [one for one in ripe if one > now]
        return max(0.0, min(due) - now)

    def _admitted(self, request: Request) -> None:
        with self._gate:
            self._entering -= request.rows
        self._segments.admit(request)

    def _hand_over(self, request: Request, finished: Finished) -> None:
        self._finished.append((request, finished))

    def _released(self, request: Request) -> None:
        with self._gate:
            self.open -= 1
        self._segments.release(request)

    def _stopped(self) -> None:
        self.over = True

    # Work.

    def _form(self, now: float) -> None:
        """Make segments of waiting rows while every unit that they need will have room for them."""
        segments = self._segments
        for members, head, rows in segments.batcher.waiting():
            limit = self._layout.rows
            lines = [
                line for line in self._pool.lines if not line.lost and not set(members).isdisjoint(line.unit.members)
            ]
            left = rows
            while left > 0 and segments.accumulator.free and all(line.has_room for line in lines):
                if left < limit and now < head.admitted + self._settings.max_delay_ms / 1e3:
                    break
                slot = segments.form(members, limit, self._pool.lost(), now)
                left -= slot.rows
                for line in lines:
                    line.add(slot, now)

    def _heard(self, post: Post) -> None:
        process = post.process
        if process is None:
            return
        try:
            message = decode(process.line.recv_bytes())
        except (EOFError, OSError):
            self._failed(post, "")
            return
        post.heard = time.monotonic()
        if isinstance(message, list):
            for report in message:
                self._reported(post, report)
        elif isinstance(message, Mapping):
            self._told(post, message)

    def _reported(self, post: Post, report: Report) -> None:
        number, generation, member = report.slot, report.generation, report.member
        if report.kind == DONE:
            post.health.batch(report.seconds)
            post.batches += 1
            self._segments.came(number, generation, member, report.seconds)
        elif report.kind == DROPPED and (slot := self._segments.accumulator.find(number, generation)):
            self._segments.without(slot, {member: LATE})
        if report.kind in {DONE, DROPPED}:
            self._landed(post, number, generation, {member})

    def _told(self, post: Post, told: Mapping[str, Any]) -> None:
        if "built" in told:
            self._built(post, told["built"])
        elif "refused" in told:
            post.said = told["refused"]
            if not self.started.is_set():
                self._refused(f"unit {post.instance.unit.name}: {post.said}")
        elif told["broken"]:  # the process ends itself, and its work goes to the next one
            post.said = told["why"]
        else:
            number, generation = told["failed"]
            trials = ", ".join(str(self._pool.trials[member]) for member in told["members"])
            if slot := self._segments.accumulator.find(number, generation):
                self._segments.refuse(slot, f"trial {trials} refused the rows ({told['why']})")
            self._landed(post, number, generation, set(told["members"]))

    def _landed(self, post: Post, number: int, generation: int, members: set[int]) -> None:
        if slot := post.landed(number, generation, members):
            self._segments.accumulator.release(slot, leases=1)

    # Processes.

    def _watch(self, now: float) -> None:
        for post in self._pool.posts:
            process = post.process
            if post.state is State.WAITING and now >= post.restart_at:
                line = self._pool.open(post, self._arena, now)
                self._selector.register(line, selectors.EVENT_READ, post)
            elif process is not None and process.ended and not process.line.poll():
                self._failed(post, "")
            elif post.state is State.STARTING and now > post.heard + self._settings.start_seconds:
                self._failed(post, f"did not start within {self._settings.start_seconds:g} s")
            elif post.flights and post.health.hung(now - post.heard):
                self._failed(post, f"was silent for {now - post.heard:.1f} s")

    def _built(self, post: Post, told: Mapping[str, Any]) -> None:
        shape = tuple(told["output_shape"])
        if not self._layout.output_shape:
            self._layout = self._pool.laid_out(shape)
            self._arena.grow(self._layout)
        elif shape != self._layout.output_shape:
            self._refused(
                f"unit {post.instance.unit.name}: answers with {shape} a row, others with {self._layout.output_shape}; "
                "allowed: members with the same outputs"
            )
            return
        post.say({"map": self._layout.to_json()})
        post.state = State.READY
        post.health.batch(told["seconds"])
        post.rate = told["rows"] / max(told["seconds"], 1e-9)
        line = self._pool.line_of(post)
        if post not in line.posts:
            self._moved(line, post)
        if all(line.ready for line in self._pool.lines):
            self.rate = min(line.rate for line in self._pool.lines)
            self.started.set()

    def _refused(self, why: str) -> None:
        self.refusal = self.refusal or ServeError(why)
        self.started.set()

    def _failed(self, post: Post, why: str) -> None:
        """End a post's process, give its work to others, and decide when the next one starts."""
        if post.process is None:
            return
        self._selector.unregister(post.process.line)
        how = post.process.kill()
        post.process = None
        line = self._pool.line_of(post)
        for slot in line.take_back(post):
            self._segments.accumulator.release(slot, leases=1)
        post.why = f"its worker {why or how}" + (f" ({post.said})" if post.said and not why else "")
        now = time.monotonic()
        pause = post.health.failed(now)
        if pause is None:
            post.state = State.LOST
            self._given_up(line)
        else:
            post.state, post.restart_at, post.restarts = State.WAITING, now + pause, post.restarts + 1
            self._segments.counts["restarts"] += 1

    def _given_up(self, line: UnitLine) -> None:
        if any(post.state is not State.LOST for post in self._pool.posts_of(line.unit)):
            return
        line.pending.clear()
        if not self.started.is_set():
            self._refused(f"unit {line.unit.name}: cannot start: {line.why}")
        elif self._settings.move:
            line.outlook = "; another place is looked for"
            self._homeless.append(line)
            self._look()
        for slot in self._segments.accumulator.used:
            self._segments.without(slot, dict.fromkeys(slot.awaited & set(line.unit.members), line.why))

    # Lost units, which are placed anew one after the other: each takes memory that the next one then lacks.

    def _look(self) -> None:
        """Look for other devices for a lost unit, beside the work."""
        if self._placing or not self._homeless:
            return
        self._placing = True
        line = self._homeless.popleft()
        lost = [post.instance for post in self._pool.posts if post.state is State.LOST]

        def looked() -> None:
            try:
                plan = self._pool.anew(line.unit, lost)
            except Exception as error:  # noqa: BLE001 - said where answers say that the unit is missing
                why = str(error) if isinstance(error, TrainwrightError) else f"{type(error).__name__}: {error}"
                self._call(partial(self._found, line, None, why))
            else:
                self._call(partial(self._found, line, plan, ""))

        threading.Thread(target=looked, name="trainwright-place", daemon=True).start()

    def _found(self, line: UnitLine, plan: Plan | None, refusal: str) -> None:
        posts = self._pool.posts_of(line.unit)
        move = {
            "unit": line.unit.name,
            "from": sorted({post.instance.device.name for post in posts}),
            "why": posts[-1].why,
        }
        if plan is None:
            line.outlook = f"; it was not placed anew: {refusal}"
            self.moves.append({**move, "to": [], "state": "refused", "refusal": refusal})
        else:
            places = [post.instance.device.name for post in self._pool.change(plan, line.unit)]
            line.outlook = f"; it starts anew on {', '.join(places)}"
            self.moves.append({**move, "to": places, "state": "starting"})
        self._placing = False
        self._look()

    def _moved(self, line: UnitLine, post: Post) -> None:
        """Let a post that was placed anew share its unit's work, now that it can."""
        line.posts.append(post)
        line.outlook = ""
        move = next(move for move in reversed(self.moves) if move["unit"] == line.unit.name)
        if move["state"] == "starting":
            move["state"] = "done"
            self._segments.counts["moved"] += 1


def _raised(error: Exception) -> NoReturn:
    raise error
