"""The ledger on a Redis server, which reconnects and retries; for more writers than a shared file system serves."""

import math
import re
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, urlsplit, urlunsplit

from trainwright.errors import LedgerError, LedgerFull, MissingExtra, StudyError
from trainwright.ledger.protocol import Cursor, Dropped
from trainwright.ledger.record import Record, new_identity, read_identity
from trainwright.ledger.writers import new_writer

if TYPE_CHECKING:
    import redis

__all__ = ["RedisLedger"]

_T = TypeVar("_T")

_FORM = "redis://HOST:PORT/0?study=NAME"
_NAME = re.compile(r"[\w.-]{1,100}")
# Without user and password; a host may be an IPv6 address in brackets.
_SERVER = re.compile(r"rediss?://([^/:]+|\[[^/\]]+\])(:\d+)?(/\d*)?")
# Of the stream, in one answer.
_ENTRIES = 1000
_LONGEST_PAUSE_SECONDS = 5.0
_SOCKET_SECONDS = 15.0

# Every change is one script: it looks whether the study is the one that we opened (ARGV[1]), and how many changes of
# this writer (ARGV[2]) the server has made. If that is fewer than the writer knows of (ARGV[3]), the server has gone
# back in time. If it is more, this very change was made and only the answer was lost: it is not made again.
_LOOK = """
local study = redis.call('GET', KEYS[1])
if not study or cjson.decode(study)['study'] ~= ARGV[1] then return redis.error_reply('STUDYGONE') end
local made, known = tonumber(redis.call('HGET', KEYS[2], ARGV[2]) or '0'), tonumber(ARGV[3])
if made < known then return redis.error_reply('STUDYBACK') end
"""
_GUARD = _LOOK + "if made == known then redis.call('HSET', KEYS[2], ARGV[2], known + 1) end\n"
_APPEND = _GUARD + "if made == known then redis.call('XADD', KEYS[3], '*', 'r', ARGV[4]) end return 1"
_CLAIM = _GUARD + "redis.call('HSETNX', KEYS[3], ARGV[4], ARGV[5]) return redis.call('HGET', KEYS[3], ARGV[4])"
_BEAT = (
    _LOOK
    + """
local now = redis.call('TIME')
for i = 4, #ARGV do
  redis.call('HINCRBY', KEYS[3], ARGV[i], 1) -- one too many is no harm
  redis.call('HSET', KEYS[3], ARGV[i] .. '@', now[1])
end
return 1"""
)


class RedisLedger:
    """A ledger in a Redis server at `url`: redis://HOST:PORT/DATABASE?study=NAME, any number of studies beside it.

        trainwright:{NAME}:study      format version, study id, time of creation; written once
        trainwright:{NAME}:records    a stream; an entry is what one `append` wrote, in the lines of a journal
        trainwright:{NAME}:claims     a hash of tokens by key
        trainwright:{NAME}:beats      a hash of counts by writer, and when each was made, by writer + "@"
        trainwright:{NAME}:changes    a hash: how many changes each writer has made, so that none is made twice

    One stream, since a reader must see each writer's records in order; one round trip for each operation. What was
    appended is as durable as the server's settings say: with the append-only file off, `create=True` warns, since then
    a crash of the server loses minutes; with `appendfsync everysec` it loses a second, with `always` nothing. A server
    that comes back with less than it had is found out and refused with `LedgerError`, never silently used.

    While the server cannot be reached, every operation is tried again for `patience_seconds`, with growing pauses. A
    batch whose answer was lost is there once. `heartbeat` may be called from another thread.
    """

    lease_seconds = 60.0

    def __init__(self, url: str, *, create: bool = False, patience_seconds: float = 60.0) -> None:
        location, self.study = _parsed(url)
        self.url = _shown(url)
        self.patience_seconds = patience_seconds
        self._server = _connected(location)
        self._keys = {
            name: f"trainwright:{{{self.study}}}:{name}" for name in ("study", "records", "claims", "beats", "changes")
        }
        self._lock = threading.RLock()
        # By entry of the stream and line.
        self._dropped: dict[tuple[str, bytes], Dropped] = {}
        if create:
            self._create()
        self.study_id = self._study_id()
        self._append = self._server.register_script(_APPEND)
        self._claim = self._server.register_script(_CLAIM)
        self._beat = self._server.register_script(_BEAT)
        # That this object was since it was opened.
        self._writers: list[str] = []
        self._open_writer()

    def _open_writer(self) -> None:
        self.writer = new_writer()
        self._writers.append(self.writer)
        self._seq = self._changes = 0

    def append(self, records: Sequence[Record]) -> list[Record]:
        """Add the records to the stream, in one entry, and return them stamped.

        After a failure the object goes on as a new writer, since it is not known whether the server has them.
        """
        with self._lock:
            at = time.time()
            stamped = [record.stamped(self.writer, self._seq + i, at) for i, record in enumerate(records)]
            data = b"".join([record.line() for record in stamped])
            if stamped:
                self._change(self._append, "records", data)
                self._seq += len(stamped)
            return stamped

    def _change(self, script: Any, key: str, *arguments: Any) -> Any:
        try:
            answer = self._call(script, key, *arguments)
        except BaseException:
            self._open_writer()
            raise
        self._changes += 1
        return answer

    def _call(self, script: Any, key: str, *arguments: Any) -> Any:
        keys = [self._keys["study"], self._keys["changes"], self._keys[key]]
        return self._reconnect(partial(script, keys=keys, args=[self.study_id, self.writer, self._changes, *arguments]))

    def read(self, cursor: Cursor | None = None, *, most: int | None = None) -> tuple[list[Record], Cursor]:
        """Return the records behind the stream's entry `cursor`."""
        records: list[Record] = []
        while True:
            wanted = _ENTRIES if most is None else min(most, _ENTRIES)
            entries = self._entries(cursor, wanted)
            lines = [line for _, fields in entries for line in _lines_of(fields)]
            found = Record.of_lines(lines)
            if str in {*map(type, found)}:
                self._drop_damaged(entries, found)
            records += [record for record in found if not isinstance(record, str)]
            if entries:
                cursor = entries[-1][0]
            if len(entries) < wanted or (most is not None and len(records) >= most):
                return records, cursor

    def _drop_damaged(self, entries: list[Any], found: list[Record | str]) -> None:
        """Keep the lines that hold no record, each with its entry and the reason."""
        lines = [(entry, line) for entry, fields in entries for line in _lines_of(fields)]
        for (entry, line), record in zip(lines, found, strict=True):
            if isinstance(record, str):
                name = f"{self.study} {entry.decode()}"
                self._dropped[name, line] = Dropped(name, 0, len(line), record)

    def _entries(self, cursor: Cursor | None, most: int) -> list[Any]:
        """Return entries behind `cursor`; the one at the cursor is asked for too, and tells that it is still there."""
        if cursor is None:
            self._check()
            return self._range("-", most)
        entries = self._range(cursor, most + 1)
        if not entries or entries[0][0] != cursor:
            raise LedgerError(self._lost())
        return entries[1:]

    def _range(self, first: Any, most: int) -> list[Any]:
        return self._reconnect(partial(self._server.xrange, self._keys["records"], min=first, count=most)) or []

    def claim(self, key: str, token: str) -> str:
        """Return the token that owns `key`, after trying to put `token` there."""
        with self._lock:
            owner: bytes = self._change(self._claim, "claims", key.encode(), token.encode())
            return owner.decode()

    def heartbeat(self) -> None:
        """Count a heartbeat of this writer and of those that it was: trials that they started are still held."""
        with self._lock:
            self._call(self._beat, "beats", *self._writers)

    def heartbeats(self, writers: Sequence[str]) -> dict[str, int]:
        """Return the counts of beats."""
        if not writers:
            return {}
        counts = self._reconnect(partial(self._server.hmget, self._keys["beats"], list(writers)))
        return {writer: int(count or 0) for writer, count in zip(writers, counts, strict=True)}

    def silences(self, writers: Sequence[str]) -> dict[str, float]:
        """Return for how many seconds each writer has sent no heartbeat, by the server's clock; inf if it never has."""
        if not writers:
            return {}
        names = [f"{writer}@" for writer in writers]
        now, _ = self._reconnect(self._server.time)
        found = self._reconnect(partial(self._server.hmget, self._keys["beats"], names))
        return {w: math.inf if at is None else max(0.0, now - int(at)) for w, at in zip(writers, found, strict=True)}

    def dropped(self) -> list[Dropped]:
        """Return the lines of the stream that are no records: somebody else has written them."""
        return list(self._dropped.values())

    def close(self) -> None:
        """Let go of the connections; if it is used again, it is as a new writer."""
        with self._lock:
            self._server.close()
            self._writers.clear()
            self._open_writer()

    # The study.

    def _create(self) -> None:
        made = self._reconnect(partial(self._server.set, self._keys["study"], new_identity(), nx=True))
        if made and not self._reconnect(partial(self._server.info, "persistence")).get("aof_enabled"):
            warnings.warn(
                f"{self.url}: the server's append-only file is off, so its crash loses what it has not saved; start it "
                "with --appendonly yes, and --appendfsync always to lose nothing",
                stacklevel=3,
            )

    def _study_id(self) -> str:
        text = self._reconnect(partial(self._server.get, self._keys["study"]))
        if text is None:
            names = sorted(
                key.decode().split("{")[1].split("}")[0]
                for key in self._reconnect(lambda: list(self._server.scan_iter("trainwright:{*}:study", count=1000)))
            )
            listed = f"; studies there: {', '.join(names[:5])}" if names else ""
            raise StudyError(f"no study {self.study!r} in {self.url}{listed}")
        return read_identity(text, f"{self._keys['study']} in {self.url}")

    def _check(self) -> None:
        try:
            same = self._study_id() == self.study_id
        except StudyError:
            same = False
        if not same:
            raise LedgerError(self._lost())

    def _lost(self) -> str:
        return (
            f"{self.url} has lost records of this study: the server was started without its data, or with older data; "
            "start it with its append-only file, or begin a new study"
        )

    def _reconnect(self, call: Callable[[], _T]) -> _T:
        """Return what `call` returns; while the server cannot be reached, reconnect until the patience is used up."""
        import redis

        began, pause = time.monotonic(), 0.05
        while True:
            try:
                return call()
            except (redis.AuthenticationError, redis.ResponseError) as error:
                # It hands over to another server.
                if isinstance(error, redis.ReadOnlyError):
                    self._wait_on(error, began)
                elif "STUDYGONE" in str(error) or "STUDYBACK" in str(error):
                    raise LedgerError(self._lost()) from None
                else:
                    # Its memory, its disk.
                    full = isinstance(error, redis.OutOfMemoryError) or "MISCONF" in str(error)
                    kind = LedgerFull if full else LedgerError
                    raise kind(f"{self.url} refuses: {error}") from error
            except (redis.ConnectionError, redis.TimeoutError) as error:
                self._wait_on(error, began)
            # So that workers do not come back all at once.
            time.sleep(pause * (0.5 + secrets.randbelow(1000) / 1000))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _wait_on(self, error: Exception, since: float) -> None:
        if time.monotonic() - since >= self.patience_seconds:
            raise LedgerError(
                f"cannot reach {self.url} for {self.patience_seconds:g} s: {error}; start the server and run again, "
                "nothing that was acknowledged is lost"
            ) from error


def _connected(location: str) -> "redis.Redis":
    with MissingExtra.instead_of_import_error("the Redis ledger", "redis", "redis"):
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    return redis.Redis.from_url(
        location, retry=Retry(NoBackoff(), 0), socket_timeout=_SOCKET_SECONDS, socket_connect_timeout=_SOCKET_SECONDS
    )


def _lines_of(fields: dict[bytes, bytes]) -> list[bytes]:
    """Return the journal lines of a stream's entry; an entry without records counts as one damaged line."""
    return fields.get(b"r", b"-").splitlines()


def _parsed(url: str) -> tuple[str, str]:
    """Return the server's own URL and the study's name."""
    parts = urlsplit(url)
    query = parse_qs(parts.query, keep_blank_values=True)
    if not _SERVER.fullmatch(
        urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", parts.fragment))
    ):
        raise StudyError(f"ledger {_shown(url)!r} is not of the form {_FORM}")
    if unknown := sorted(query.keys() - {"study"}):
        raise StudyError(f"ledger {_shown(url)!r}: unknown option {unknown[0]!r}; allowed: study, as in {_FORM}")
    names = query.get("study", [])
    if len(names) != 1 or not _NAME.fullmatch(names[0]):
        got = f"study={', '.join(names)}" if names else "no study"
        raise StudyError(
            f"ledger {_shown(url)!r} has {got}; give one name of letters, digits, '_', '-' and '.', as in {_FORM}"
        )
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")), names[0]


def _shown(url: str) -> str:
    """Return the URL without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
