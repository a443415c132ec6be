"""The Redis ledger: it passes the conformance class, and a server that dies, forgets or goes silent costs nothing."""

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from known_records import known_records

from servers import CuttingProxy, Server, needs_redis
from trainwright.errors import LedgerError, LedgerFull, LedgerTooNew, MissingExtra, StudyError
from trainwright.ledger import Record, RedisLedger, blocks, open_ledger
from trainwright.ledger.record import FORMAT
from trainwright.testing.ledger import LedgerConformance, records

needs_redis()
redis = pytest.importorskip("redis")
pytestmark = pytest.mark.outside("Redis")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path / "redis")
    yield server
    server.kill()


@pytest.fixture
def ledger(server):
    ledger = RedisLedger(server.url("digits"), create=True)
    yield ledger
    ledger.close()


@pytest.fixture(autouse=True)
def _connections_end_with_the_test(monkeypatch):
    """Close what a test leaves open: its sockets would fail whichever test is next when garbage is collected."""
    pools, make = [], redis.ConnectionPool.__init__

    def recorded(pool, *arguments, **named):
        make(pool, *arguments, **named)
        pools.append(pool)

    monkeypatch.setattr(redis.ConnectionPool, "__init__", recorded)
    yield
    for pool in pools:
        pool.disconnect()


def another(ledger, server, **named):
    return RedisLedger(server.url(ledger.study), **named)


def marks(*values):
    return [Record(kind="mark", body={"value": value}) for value in values]


def values(records):
    return [record.body["value"] for record in records]


class TestRedisLedger(LedgerConformance):
    examples = 10
    records = known_records | records
    numbers = itertools.count()

    @pytest.fixture(autouse=True)
    def _server(self, shared):
        self.server = shared

    def make(self):
        return RedisLedger(self.server.url(f"study-{next(self.numbers)}"), create=True)

    def another(self, ledger):
        return RedisLedger(self.server.url(ledger.study))


# Addresses.


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("redis://host/0", r"has no study; give one name of letters, digits, .* redis://HOST:PORT/0\?study=NAME"),
        ("redis://host/0?study=", "has study=; give one name"),
        ("redis://host/0?study=a%7Bb", "has study=a{b; give one name"),
        ("redis://host/0?study=a&study=b", "has study=a, b; give one name"),
        ("redis://host/0?study=a&db=1", "unknown option 'db'; allowed: study"),
        ("redis://host:port/0?study=a", "is not of the form redis://HOST:PORT"),
        ("redis:///0?study=a", "is not of the form"),
        ("redis://host/zero?study=a", "is not of the form"),
        ("http://host/0?study=a", "is not of the form"),
        ("redis://me:secret@host/0", "ledger 'redis://host/0' has no study"),
    ],
)
def test_addresses_that_mean_nothing(url, sentence):
    with pytest.raises(StudyError, match=sentence):
        RedisLedger(url)


def test_open_ledger(shared, tmp_path):
    """A directory or an address; nothing else."""
    assert isinstance(open_ledger(shared.url("opened"), create=True), RedisLedger)
    made = open_ledger(tmp_path / "study", create=True)
    assert open_ledger(str(tmp_path / "study"), create=False).study_id == made.study_id
    with pytest.raises(StudyError, match=r"ledger: got ftp://host/x; allowed: a directory, or redis://HOST"):
        open_ledger("ftp://host/x", create=True)
    with pytest.raises(StudyError, match="no study in"):
        open_ledger(tmp_path / "nothing", create=False)


def test_studies_of_one_server(shared):
    first = RedisLedger(shared.url("first"), create=True)
    second = RedisLedger(shared.url("second"), create=True)
    first.append(marks(1))
    second.append(marks(2))
    assert (values(first.read()[0]), values(second.read()[0])) == ([1], [2])
    assert first.claim("key", "1") == "1"
    assert second.claim("key", "2") == "2"
    with pytest.raises(
        StudyError, match=r"no study 'third' in redis://127.0.0.1:\d+/0\?study=third; studies there: first, "
    ):
        RedisLedger(shared.url("third"))


def test_a_study_that_is_there_is_kept(shared):
    first = RedisLedger(shared.url("kept"), create=True)
    assert RedisLedger(shared.url("kept"), create=True).study_id == first.study_id


def test_newer_and_damaged_studies(shared):
    key = "trainwright:{odd}:study"
    shared.client().set(key, f'{{"format": {FORMAT + 1}, "study": "x"}}')
    with pytest.raises(LedgerTooNew, match=f"format {FORMAT + 1}; this version reads up to {FORMAT}; upgrade"):
        RedisLedger(shared.url("odd"), create=True)
    shared.client().set(key, "7")
    with pytest.raises(StudyError, match="is damaged: expected a JSON object"):
        RedisLedger(shared.url("odd"))


def test_a_server_that_saves_nothing_is_told_of(tmp_path):
    server = Server(tmp_path / "redis", durable=False)
    try:
        with pytest.warns(UserWarning, match=r"append-only file is off.*--appendonly yes"):
            RedisLedger(server.url("digits"), create=True)
        RedisLedger(server.url("digits"), create=True)  # told once, by whoever makes it
    finally:
        server.kill()


def test_without_the_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtra, match=r'the Redis ledger needs redis: pip install "\.\[redis\]"'):
        RedisLedger("redis://host/0?study=a")


# Faults.


def test_killed_and_started_again(ledger, server):
    """All that was acknowledged is there; writers, readers and claims go on where they were."""
    reader = another(ledger, server)
    acknowledged, seen, cursor = [], [], None
    assert ledger.claim("key", "mine") == "mine"
    for round_ in range(5):
        acknowledged += values(ledger.append(marks(2 * round_, 2 * round_ + 1)))
        ledger.heartbeat()
        records, cursor = reader.read(cursor)
        seen += values(records)
        server.kill()
        server.start()
    assert values(reader.read(cursor)[0]) == []
    assert seen == acknowledged == values(another(ledger, server).read()[0])
    assert reader.claim("key", "other") == "mine"
    assert reader.heartbeats([ledger.writer]) == {ledger.writer: 5}


def test_writers_wait_for_the_server(ledger, server):
    """Killed under load and back after a second: no error, nothing lost, nothing twice."""
    told = Counter()

    def work(name):
        one = another(ledger, server)
        for number in range(150):
            one.append(marks(f"{name}/{number}"))
            told[one.claim(f"key/{number}", name)] += 1
        one.close()

    workers = [threading.Thread(target=work, args=(str(i),)) for i in range(4)]
    for worker in workers:
        worker.start()
    time.sleep(0.05)
    server.kill()
    time.sleep(0.3)
    server.start()
    for worker in workers:
        worker.join(60)
    found = values(record for records, _ in blocks(ledger) for record in records)
    assert sorted(found) == sorted(f"{name}/{number}" for name in range(4) for number in range(150))
    assert sum(told.values()) == 600
    owners = [ledger.claim(f"key/{number}", "late") for number in range(150)]
    assert {owner: 4 * count for owner, count in Counter(owners).items()} == told


def test_a_lost_answer_is_not_written_twice(ledger, server):
    proxy = CuttingProxy(server)
    cut = RedisLedger(proxy.url("digits"))
    try:
        for number in range(5):
            proxy.cut = number % 3
            cut.append(marks(number))
            proxy.cut = number % 2
            cut.heartbeat()
            proxy.cut = number % 2
            assert cut.claim(f"{number}", "mine") == "mine"
        writer = cut.writer
    finally:
        cut.close()
        proxy.close()
    assert values(ledger.read()[0]) == list(range(5))
    assert ledger.heartbeats([writer])[writer] >= 5  # one too many is no harm


def test_patience_ends(ledger, server):
    """Then the error says what to do; the object goes on as a new writer, as what became of the batch is unknown."""
    impatient = another(ledger, server, patience_seconds=0.2)
    impatient.append(marks(1))
    writer = impatient.writer
    server.kill()
    for act in (
        lambda: impatient.append(marks(2)),
        impatient.read,
        lambda: impatient.claim("key", "mine"),
        impatient.heartbeat,
        lambda: impatient.heartbeats(["x"]),
        lambda: another(ledger, server, patience_seconds=0.1),
    ):
        with pytest.raises(
            LedgerError, match=r"cannot reach redis://127.0.0.1:\d+/0\?study=digits for 0.\d s: .*again"
        ):
            act()
    server.start()
    impatient.append(marks(3))
    assert impatient.writer != writer
    assert values(ledger.read()[0]) == [1, 3]
    before = ledger.heartbeats([writer])[writer]
    impatient.heartbeat()
    assert ledger.heartbeats([writer])[writer] == before + 1  # what it began under that name goes on


def everything(ledger, cursor):
    return [
        lambda: ledger.append(marks("late")),
        lambda: ledger.claim("late", "mine"),
        ledger.heartbeat,
        lambda: ledger.read(cursor),
    ]


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_server_that_forgot_is_refused(ledger, server, made_anew):
    """Also if another has made a study of that name on it since; nothing is written there."""
    ledger.append(marks(1))
    _, cursor = ledger.read()
    server.forget()
    server.start()
    if made_anew:
        RedisLedger(server.url("digits"), create=True)
    before = server.client().dbsize()
    for act in [*everything(ledger, cursor), *everything(ledger, None)]:
        with pytest.raises(LedgerError, match=r"study=digits has lost records .* without its data, or with older data"):
            act()
    assert server.client().dbsize() == before


def test_a_server_that_went_back_in_time_is_refused(ledger, server):
    """It came back with the data of a moment ago: writers and readers that know better find out."""
    reader = another(ledger, server)
    ledger.append(marks(1))
    old = {path: path.read_bytes() for path in server.folder.rglob("*") if path.is_file()}
    ledger.append(marks(2))
    _, cursor = reader.read()
    server.kill()
    for path, data in old.items():
        path.write_bytes(data)
    server.start()
    for act in (lambda: ledger.append(marks(3)), lambda: reader.read(cursor)):
        with pytest.raises(LedgerError, match="has lost records of this study"):
            act()
    claimer = another(ledger, server)
    assert values(claimer.read()[0]) == [1]


@pytest.mark.parametrize("behind", [False, True])
def test_a_replica_takes_over(server, tmp_path, behind):
    """Under one address: it has everything and nobody notices; or it lacks the last records, and who knows finds out.

    A server acknowledges what its replicas may not have yet, so the loss is told instead of passed over.
    """
    replica, proxy = Server(tmp_path / "replica"), CuttingProxy(server)
    replica.follow(server)
    ledger, reader = RedisLedger(proxy.url("digits"), create=True), RedisLedger(proxy.url("digits"))
    try:
        ledger.append(marks(*range(20)))
        assert ledger.claim("key", "mine") == "mine"
        assert server.client().wait(1, 10_000) == 1
        if behind:
            replica.client().replicaof("NO", "ONE")
        ledger.append(marks(20))
        _, cursor = reader.read()
        if not behind:
            assert server.client().wait(1, 10_000) == 1
        server.kill()
        replica.client().replicaof("NO", "ONE")
        proxy.server = replica
        if behind:
            for act in (lambda: ledger.append(marks(21)), lambda: reader.read(cursor)):
                with pytest.raises(LedgerError, match="has lost records of this study"):
                    act()
        else:
            ledger.append(marks(21))
            assert values(reader.read(cursor)[0]) == [21]
            assert values(RedisLedger(replica.url("digits")).read()[0]) == list(range(22))
        assert RedisLedger(replica.url("digits")).claim("key", "another") == "mine"
    finally:
        for each in (ledger, reader):
            with contextlib.suppress(LedgerError):
                each.close()
        proxy.close()
        replica.kill()


def test_a_claim_that_went_back_in_time_is_refused(ledger, server):
    ledger.claim("before", "mine")
    old = {path: path.read_bytes() for path in server.folder.rglob("*") if path.is_file()}
    ledger.claim("key", "mine")
    server.kill()
    for path, data in old.items():
        path.write_bytes(data)
    server.start()
    with pytest.raises(LedgerError, match="has lost records of this study"):
        ledger.append(marks(1))


def test_a_full_server_refuses_clearly(ledger, server):
    ledger.append(marks(1))
    server.client().config_set("maxmemory", 1)
    with pytest.raises(LedgerFull, match=r"redis://.*study=digits refuses: .*maxmemory"):
        ledger.append(marks(2))
    server.client().config_set("maxmemory", 0)
    ledger.append(marks(3))
    assert values(ledger.read()[0]) == [1, 3]


def test_a_password_is_asked_for_and_never_shown(ledger, server):
    server.client().config_set("requirepass", "secret")
    url = server.url("digits").replace("//", "//:wrong@")
    with pytest.raises(LedgerError, match="refuses") as caught:
        RedisLedger(url)
    assert "wrong" not in str(caught.value)
    right = RedisLedger(server.url("digits").replace("//", "//:secret@"))
    right.append(marks(1))
    assert "secret" not in right.url


@pytest.mark.parametrize(("processes", "keys"), [(4, 50), pytest.param(64, 1000, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_one_winner_among_many_processes(ledger, server, processes, keys):
    script = (
        "import sys; from trainwright.ledger import RedisLedger\n"
        "ledger = RedisLedger(sys.argv[1]); print('ready', flush=True); sys.stdin.readline()\n"
        "print(*[ledger.claim(f'number/{key}', sys.argv[2]) for key in range(int(sys.argv[3]))])"
    )
    command = [sys.executable, "-c", script, server.url("digits")]
    running = [
        subprocess.Popen([*command, f"p{i}", str(keys)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for i in range(processes)
    ]
    try:
        for process in running:
            assert process.stdout.readline() == "ready\n"
        for process in running:
            process.stdin.write("go\n")
            process.stdin.flush()
        told = [process.communicate()[0].split() for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert told[0] == [ledger.claim(f"number/{key}", "late") for key in range(keys)]
    assert all(owners == told[0] for owners in told)


def test_a_study_on_a_server(ledger, server, tmp_path):
    """Two drivers with a server between them, killed and started again in between; its directory knows where it is."""
    import trainwright as tw
    from trainwright.ledger import Status

    url = server.url("study")
    space = tw.Space(x=tw.Float(0, 1))
    study = tw.Study(space, "min loss", directory=tmp_path / "study", ledger=url)
    asked = study.ask()
    server.kill()
    server.start()
    other = tw.Study.open(tmp_path / "study")
    assert [trial.status for trial in other.trials] == [Status.PROPOSED]
    study.tell(asked, loss=1.0)
    other.refresh()
    assert other.best.number == tw.Study.open(url).best.number == 0
    assert (tmp_path / "study/ledger/url").stat().st_mode & 0o777 == 0o600
    with pytest.raises(StudyError, match=r"has its ledger in redis://.*; use a new directory, or leave ledger= out"):
        tw.Study(space, "min loss", directory=tmp_path / "study", ledger=server.url("another"))
    with pytest.raises(StudyError, match="was made with seed 0, now 1"):
        tw.Study(space, "min loss", ledger=url, seed=1)
    tw.Study(space, "min loss", directory=tmp_path / "plain").close()
    with pytest.raises(StudyError, match="has its ledger in the directory itself"):
        tw.Study(space, "min loss", directory=tmp_path / "plain", ledger=server.url("another"))
