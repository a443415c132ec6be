"""Rows in segments and predictions in slots, without processes: nothing lost, twice, or of another time."""

import json
from collections import Counter
from dataclasses import asdict
from multiprocessing import Pipe
from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainwright.serve import DeploymentSettings, Options
from trainwright.serve.runtime.arena import Arena, ArenaShape, SlotReport, SlotTask, receive_message, send_message
from trainwright.serve.runtime.batching import Batcher, Request
from trainwright.serve.runtime.segments import Segments
from trainwright.serve.runtime.worker_slots import UnitWork, WorkerSlot


def request(rows, first=0):
    x = np.arange(first, first + rows, dtype=np.float32)[:, None]
    return Request(x=x, options=Options(), admitted=float(first))


class TestBatcher:
    @given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=30), limit=st.integers(1, 128))
    def test_all_rows_once_in_order(self, sizes, limit):
        """Segments are full but for the last, and hold every row of every request once, in order."""
        batcher = Batcher()
        asked = [request(rows, first=1000 * number) for number, rows in enumerate(sizes)]
        for one in asked:
            batcher.put(one)
        assert batcher.rows == sum(sizes)
        rows, lengths = [], []
        while batcher.rows:
            pieces = batcher.take(limit)
            assert [piece.start for piece in pieces] == np.cumsum([0, *(piece.rows for piece in pieces)])[:-1].tolist()
            rows += [row for piece in pieces for row in piece.request.x[piece.first : piece.first + piece.rows, 0]]
            lengths.append(sum(piece.rows for piece in pieces))
        assert rows == [row for one in asked for row in one.x[:, 0]]
        assert lengths[:-1] == [limit] * (len(lengths) - 1)
        assert not batcher.requests

    def test_begun_anew(self):
        """A request that goes back is taken whole, before others, and alone if it has to be."""
        batcher = Batcher()
        first, second = request(150), request(5, first=500)
        batcher.put(first)
        first.pieces = batcher.take(128)
        batcher.put(second)
        batcher.requeue(first)
        first.alone = True
        assert batcher.rows == 155
        assert [(piece.request, piece.rows) for piece in batcher.take(128)] == [(first, 128)]
        assert [(piece.request, piece.rows) for piece in batcher.take(128)] == [(first, 22)]
        assert [(piece.request, piece.rows) for piece in batcher.take(128)] == [(second, 5)]
        assert batcher.rows == 0

    def test_dropped(self):
        batcher = Batcher()
        one, other = request(100), request(7)
        batcher.put(one)
        batcher.put(other)
        batcher.take(60)
        batcher.drop(one)
        assert batcher.rows == 7
        batcher.drop(other)
        assert batcher.rows == 0
        assert not batcher.requests


class TestSegments:
    @given(data=st.data())
    def test_against_a_list(self, data):
        """Whatever is reported, in any order, twice or too late: counted once if it is of this time, else named."""
        layout = ArenaShape(slots=3, rows=4, members=3, input_shape=(1,), input_dtype="float32", output_shape=(1,))
        arena, finished = Arena.create(), []
        arena.grow(layout)
        ensemble = SimpleNamespace(members=range(3), weights=(1.0, 1.0, 1.0))
        segments = Segments(
            ensemble=ensemble,
            slots=3,
            arena=arena,
            settings=DeploymentSettings(),
            counts=Counter(),
            deliver=finished.append,
        )
        now = {}  # slot → (slot, generation, members that came)
        ended, asked = [], 0
        counted = {"duplicates": 0, "stale": 0}
        for _ in range(data.draw(st.integers(1, 60))):
            action = data.draw(st.sampled_from(["form", "report", "old", "leave"]))
            if action == "form" and segments.free:
                asked += 1
                segments.admit(request(2))
                slot = segments.form(4, {})
                slot.leases += 1
                assert slot.number not in now
                now[slot.number] = (slot, slot.generation, set())
            elif action == "report" and now:
                slot, generation, came = data.draw(st.sampled_from(list(now.values())))
                member = data.draw(st.integers(0, 2))
                segments.record_prediction(slot.number, generation, member)
                counted["duplicates"] += member in came
                came.add(member)
                assert slot.awaited == {0, 1, 2} - came
                assert slot not in segments.free, "a worker may still write to it"
            elif action == "old" and ended:
                number, generation = data.draw(st.sampled_from(ended))
                segments.record_prediction(number, generation, 0)
                counted["stale"] += 1
            elif action == "leave" and now:
                slot, generation, came = data.draw(st.sampled_from(list(now.values())))
                segments.release(slot, leases=1)
                assert (slot in segments.free) == (came == {0, 1, 2})
                if came == {0, 1, 2}:
                    del now[slot.number]
                    ended.append((slot.number, generation))
                else:
                    slot.leases += 1  # another worker takes over
        assert {name: segments.counts[name] for name in counted} == counted
        assert len(segments.free) == 3 - len(now)
        assert len(finished) == asked - sum(came != {0, 1, 2} for _, _, came in now.values())
        arena.close()


def test_a_lease_ends_with_the_last_member():
    """What is reported of work that is over ends no other."""
    slot = SimpleNamespace(number=3, generation=1, leases=0, rows=2)
    worker = WorkerSlot(instance=SimpleNamespace(unit=SimpleNamespace(members=(0, 1))), health=None)
    worker.assign(UnitWork(slot=slot, generation=1, members={0, 1}), now=5.0)
    assert worker.finish_members(3, 1, {0}) is None
    assert worker.finish_members(3, 0, {1}) is None
    assert worker.finish_members(3, 1, {1}) is slot
    assert worker.finish_members(3, 1, {1}) is None


class TestArena:
    def test_places_do_not_overlap(self):
        """What is written to one place is read there, through a second mapping, and nowhere else."""
        layout = ArenaShape(slots=3, rows=5, members=2, input_shape=(2, 3), input_dtype="float32", output_shape=(4,))
        front = Arena.create()
        front.grow(layout)
        worker = Arena(front.descriptor)
        worker.map(ArenaShape(**json.loads(json.dumps(asdict(layout)))))
        places = [front.inputs(slot) for slot in range(3)]
        places += [front.predictions(slot, member) for slot in range(3) for member in range(2)]
        for value, place in enumerate(places, start=1):
            place[:] = value
        seen = [worker.inputs(slot) for slot in range(3)]
        seen += [worker.predictions(slot, member) for slot in range(3) for member in range(2)]
        for value, place in enumerate(seen, start=1):
            assert (place == value).all()
        assert seen[0].shape == (5, 2, 3)
        assert seen[-1].shape == (5, 4)
        assert all(place.ctypes.data % 64 == 0 for place in seen)
        front.close()


@given(seconds=st.floats(allow_nan=False), members=st.lists(st.integers(0, 99), max_size=5))
def test_messages(seconds, members):
    """What was sent is received."""
    ours, theirs = Pipe()
    task = SlotTask(slot=2**32, generation=7, rows=3, members=tuple(members))
    reports = [SlotReport(1, 2, 3, seconds), SlotReport(2**32, 0, 1, 0.0)]
    with ours, theirs:
        for message in (task, reports, {"a": 1}):
            send_message(ours, message)
        found = SlotTask(*receive_message(theirs))
        assert (found[:-1], tuple(found.members)) == (task[:-1], task.members)
        assert [SlotReport(*one) for one in receive_message(theirs)] == reports
        assert receive_message(theirs) == {"a": 1}
