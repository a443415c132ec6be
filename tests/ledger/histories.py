"""Histories of made-up studies: what several writers append, as the protocol allows it, and ways to interleave it."""

import itertools

from hypothesis import strategies as st

from trainwright.ledger import Record, Writer, facts

__all__ = ["Scribe", "histories", "interleavings"]

WRITERS = ("a", "b", "c")
metrics = st.dictionaries(st.sampled_from(["loss", "accuracy"]), st.floats(allow_nan=False), min_size=1)


class Scribe:
    """One writer: stamps its records as a ledger would and keeps them in `stream`."""

    clock = itertools.count(1)  # later records have later times; nothing may depend on that

    def __init__(self, name):
        self.name = name
        self.stream = []

    def writes(self, *records):
        """Stamp the records and return them."""
        stamped = [r.stamped(self.name, len(self.stream) + i, next(self.clock)) for i, r in enumerate(records)]
        self.stream += stamped
        return stamped


@st.composite
def histories(draw, most=40):
    """Return streams of records by writer: each lease has one holder; losses and told results come from anybody."""
    scribes = {name: Scribe(name) for name in WRITERS}
    everybody = st.sampled_from(WRITERS).map(scribes.__getitem__)
    for session, scribe in enumerate(scribes.values()):
        host = Writer(host=scribe.name, boot="", pid=session, process_start="1")
        scribe.writes(facts.joined(host, session=session))
        if draw(st.booleans()):
            scribe.writes(facts.created(space={"by": scribe.name}, objectives=["min loss"], seed=session, versions={}))
    holders = {}  # by (trial, lease)
    for _ in range(draw(st.integers(0, most))):
        number = draw(st.integers(0, 3))
        somebody = draw(everybody)
        kind = draw(
            st.sampled_from(
                ["propose", "start", "begin", "promote", "report", "report", "save", "end", "lose", "tell", "other"]
            )
        )
        params = {"x": draw(st.integers(0, 3)), "pair": draw(st.just([1, 2]))}
        proposal = facts.proposed(number, params=params, key=somebody.name, origin={}, seen=0, seen_hash="0")
        if kind == "propose":
            somebody.writes(proposal)
        elif kind in {"start", "begin"}:
            lease = 1 + sum(trial == number for trial, _ in holders)
            holders[number, lease] = somebody
            start = facts.started(number, lease, slot="0", devices=["cpu:0"], resumed_epoch=0)
            somebody.writes(start if kind == "start" else facts.begun(proposal, start))
        elif kind == "promote":
            lease = 1 + sum(trial == number for trial, _ in holders)
            holders[number, lease] = somebody
            somebody.writes(facts.promoted(number, lease, until_epoch=9))
            if draw(st.booleans()):
                somebody.writes(facts.started(number, lease, slot="0", devices=["cpu:0"], resumed_epoch=0))
        elif kind == "other":
            somebody.writes(draw(others(number)))
        elif leases := sorted(lease for trial, lease in holders if trial == number):
            lease = draw(st.sampled_from(leases))
            holder = holders[number, lease]
            epoch = draw(st.integers(1, 4))
            if kind == "report":
                seconds = draw(st.integers(0, 9))
                holder.writes(
                    facts.reported(number, lease, epoch=epoch, step=None, metrics=draw(metrics), wall_seconds=seconds)
                )
            elif kind == "save":
                path = f"{number}/{lease}/{epoch}/{len(holder.stream)}"
                saved = facts.checkpointed(number, lease, epoch=epoch, path=path, bytes=1, digest=path, step=epoch)
                holder.writes(saved)
                holder.writes(facts.offered(number, lease, epoch=epoch, path=path, digests={}))
            elif kind == "lose":
                somebody.writes(facts.lost(number, lease, why="gone", blame=draw(st.booleans())))
            else:
                (holder if kind == "end" else somebody).writes(draw(ends(number, lease)))
    for scribe in scribes.values():
        if draw(st.booleans()):
            scribe.writes(facts.left())
    return {scribe.name: scribe.stream for scribe in scribes.values()}


def ends(number, lease):
    """Any end of a lease."""
    reasons = st.sampled_from(["completed", "stopped", "cancelled"])
    finished = st.builds(
        lambda reason, values: facts.finished(number, lease, reason=reason, values=values, wall_seconds=1.0),
        reasons,
        metrics,
    )
    failed = st.just(facts.failed(number, lease, failure="exception", message="no", wall_seconds=2.0))
    paused = st.builds(
        lambda reason: facts.paused(number, lease, reason=reason, epoch=1, values={"loss": 1.0}, wall_seconds=3.0),
        st.sampled_from(["rung", "preempted"]),
    )
    return finished | failed | paused


def others(number):
    """Any record that moves no trial, one of a kind that this version does not know among them."""
    return st.sampled_from(
        [
            facts.note("name", 1, trial=number),
            facts.decided(number, epoch=1, rule="R", verdict="stop", value=1.0, threshold=None),
            Record(kind="resized", body={"before": 1, "after": 2}, trial=number, lease=1),
        ]
    )


@st.composite
def interleavings(draw, streams, *, repeated=True):
    """Return one sequence that keeps the order of each stream; with `repeated`, some records come again later."""
    left = {name: list(stream) for name, stream in streams.items() if stream}
    merged = []
    while left:
        name = draw(st.sampled_from(sorted(left)))
        merged.append(left[name].pop(0))
        if not left[name]:
            del left[name]
        if repeated and draw(st.integers(0, 3)) == 0:
            merged.append(draw(st.sampled_from(merged)))
    return merged
