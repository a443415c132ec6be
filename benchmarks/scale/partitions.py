"""A storm over a network: workers in namespaces of their own are cut off from Redis and killed; nothing is lost.

    python -m benchmarks.scale.partitions --workers 4 --trials 1000 --partitions 20 --kills 100 --failovers 10 --json

Needs root, `ip` and redis-server; elsewhere it says what is missing. The server and its replica are in one network
namespace of this machine, each worker in another, joined by pairs of virtual cables. Links go down for up to
`--longest` seconds, also while a worker sends, workers die by SIGKILL and are replaced, and so does the server, whose
replica is promoted under the same address, without what it had not yet got. When all trials have a result, the records
are looked through: trials without a result are lost, those with two ends doubled.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._report import ROOT, add_arguments, finish_table
from benchmarks.scale.team import _look_through

import trainwright as tw

__all__ = ["add_storm_arguments", "finish_storm", "main", "run_storm", "start_worker", "work"]

_PREFIX = f"tw{os.getpid() % 100_000}"
_PORT, _REPLICA_PORT = 6399, 6400
_LAG_SECONDS = 0.5  # by which a replica may be behind


def _ip(*words: str, inside: str | None = None) -> None:
    command = ["ip", *words] if inside is None else ["ip", "netns", "exec", inside, "ip", *words]
    subprocess.run(["/usr/bin/env", *command], check=True, capture_output=True)


@contextmanager
def _networks(workers: int) -> Iterator[tuple[str, list[str]]]:
    """Make the server's namespace and the workers', each with a cable to it; they are gone afterwards."""
    server, members = f"{_PREFIX}s", [f"{_PREFIX}w{number}" for number in range(workers)]
    try:
        for name in (server, *members):
            _ip("netns", "add", name)
            _ip("link", "set", "lo", "up", inside=name)
        for number, name in enumerate(members):
            here, there = f"{_PREFIX}a{number}", f"{_PREFIX}b{number}"
            _ip("link", "add", here, "netns", name, "type", "veth", "peer", "name", there, "netns", server)
            for place, link, last in ((name, here, 2), (server, there, 1)):
                _ip("addr", "add", f"10.199.{number}.{last}/24", "dev", link, inside=place)
                _ip("link", "set", link, "up", inside=place)
        yield server, members
    finally:
        for name in (server, *members):
            subprocess.run(["/usr/bin/env", "ip", "netns", "del", name], check=False, capture_output=True)


def _train(trial: tw.Trial) -> float:
    time.sleep(0.2)
    return float(trial.params["x"])


def work(where: str, trials: int) -> None:
    """Run as one worker, and go on after each time that the ledger was out of reach for too long, or went back."""
    while True:
        try:
            worker = tw.Worker(where=where, train=_train, searcher=tw.RandomSearcher(), engine=tw.Local(workers=0))
            worker.run(trials=trials, progress=False)
        except tw.TrainwrightError as error:
            print(f"worker: {error}", file=sys.stderr, flush=True)
            time.sleep(0.5)
        else:
            return


def start_worker(module: str, where: str, trials: int, errors: Any, *before: str) -> subprocess.Popen[bytes]:
    """Start a worker by a benchmark's own command, behind the words that put it into its place."""
    words = [*before, sys.executable, "-W", "ignore", "-m", module, "--worker", where, "--trials", str(trials)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    return subprocess.Popen(words, cwd=ROOT, env=variables, stderr=errors)


def run_storm(
    options: argparse.Namespace,
    draws: random.Random,
    start: Callable[[int], subprocess.Popen[bytes]],
    faults: Mapping[str, Callable[[], None]],
    before_kill: Callable[[int], None] = lambda _: None,
) -> dict[str, int]:
    """Let workers work until all is done; meanwhile kill, and let each fault strike as often as its option says.

    Who ended by an error is replaced. Returns how often each fault has struck.
    """
    running = [start(number) for number in range(options.workers)]

    def kill() -> None:
        number = draws.choice([number for number, each in enumerate(running) if each.poll() != 0] or [0])
        before_kill(number)
        running[number].kill()
        running[number].wait()
        running[number] = start(number)

    strikes = {"kills": kill, **faults}
    due = [name for name in strikes for _ in range(getattr(options, name))]
    struck = dict.fromkeys(strikes, 0)
    draws.shuffle(due)
    until = time.monotonic() + options.seconds
    while (left := [number for number, each in enumerate(running) if each.poll() != 0]) and time.monotonic() < until:
        for number in left:
            if running[number].poll() is not None:
                running[number] = start(number)
        if due:
            name = due.pop()
            strikes[name]()
            struck[name] += 1
        time.sleep(draws.uniform(0.5, 1.5))
    for each in running:
        each.kill()
        each.wait()
    if left:
        raise SystemExit(f"storm: {len(left)} workers were not done after {options.seconds:g} s; raise --seconds")
    return struck


@contextmanager
def _servers(inside: list[str], folder: Path, failovers: int, draws: random.Random) -> Iterator[Callable[[], None]]:
    """Start a server, and a replica if there are failovers; yield what kills the server and promotes its replica."""
    running: list[subprocess.Popen[bytes]] = []

    def tell(port: int, *words: str) -> str:
        command = [*inside, "redis-cli", "-p", str(port), *words]
        return subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout

    def start(port: int, *settings: str) -> None:
        home = folder / f"server-{time.monotonic_ns()}"
        home.mkdir()
        words = ["--port", str(port), "--dir", str(home), "--save", "", "--appendonly", "yes", "--protected-mode", "no"]
        words += ["--repl-diskless-sync-delay", "0", *settings]
        running.append(subprocess.Popen([*inside, "redis-server", *words], stdout=subprocess.DEVNULL))
        until, ready = time.monotonic() + 30, "master_link_status:up" if settings else "role:master"
        while ready not in tell(port, "info", "replication"):
            if time.monotonic() > until:
                raise SystemExit("partitions: redis-server does not start here, or does not replicate")
            time.sleep(0.05)

    def follow() -> None:
        start(_REPLICA_PORT, "--replicaof", "127.0.0.1", str(_PORT))

    def fail_over() -> None:
        # What the server acknowledges from here on dies with it: replicas lag behind.
        tell(_REPLICA_PORT, "replicaof", "no", "one")
        time.sleep(draws.uniform(0.0, _LAG_SECONDS))
        running[0].kill()
        running.pop(0).wait()
        tell(_REPLICA_PORT, "config", "set", "port", str(_PORT))
        follow()

    try:
        start(_PORT)
        if failovers:
            follow()
        yield fail_over
    finally:
        for each in running:
            each.terminate()
            each.wait()


def _storm(options: argparse.Namespace) -> dict[str, int]:
    draws = random.Random(options.seed)
    module = "benchmarks.scale.partitions"
    with tempfile.TemporaryDirectory() as folder, _networks(options.workers) as (server, members):
        into = ["/usr/bin/env", "ip", "netns", "exec"]
        path = Path(folder) / "errors"
        with path.open("w") as errors, _servers([*into, server], Path(folder), options.failovers, draws) as fail_over:

            def ask(*words: str) -> list[int]:
                """Run this command in the namespace of the server."""
                words = (*into, server, sys.executable, "-W", "ignore", "-m", module, *words)
                return [*map(int, subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout.split())]

            def start(number: int) -> subprocess.Popen[bytes]:
                url = f"redis://10.199.{number}.1:{_PORT}/0?study=storm"
                return start_worker(module, url, options.trials, errors, *into, members[number])

            def cut() -> None:
                number = draws.randrange(options.workers)
                _ip("link", "set", f"{_PREFIX}a{number}", "down", inside=members[number])
                time.sleep(draws.uniform(0.1, options.longest))
                _ip("link", "set", f"{_PREFIX}a{number}", "up", inside=members[number])

            url = f"redis://127.0.0.1:{_PORT}/0?study=storm"
            ask("--make", url)
            struck = run_storm(options, draws, start, {"partitions": cut, "failovers": fail_over})
            looked = ask("--look", url, "--trials", str(options.trials))
        refused = path.read_text(encoding="utf-8").count("has lost records")
    found = dict(zip(("trials", "lost", "doubled"), looked, strict=True))
    return {**found, **struck, "workers told of a lost tail": refused}


def add_storm_arguments(parser: argparse.ArgumentParser, *, workers: int, trials: int, kills: int) -> None:
    """Add the options of every storm."""
    parser.add_argument("--workers", type=int, default=workers)
    parser.add_argument("--trials", type=int, default=trials)
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--longest", type=float, default=5.0, help="seconds that a link is down, or a view stops")
    parser.add_argument("--seconds", type=float, default=600.0, help="at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", metavar="WHERE", help=argparse.SUPPRESS)
    add_arguments(parser)


def finish_storm(name: str, options: argparse.Namespace, found: Mapping[str, int]) -> dict[str, Any]:
    """Print and keep what the records say."""
    rows = [[what, f"{count:,}"] for what, count in found.items()]
    return finish_table(name, options, ["a storm", "count"], rows, found, seed=options.seed)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the storm and print what the records say."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--failovers", type=int, default=0, help="deaths of the server, whose replica is promoted")
    for name in ("--make", "--look"):
        parser.add_argument(name, metavar="URL", help=argparse.SUPPRESS)
    add_storm_arguments(parser, workers=4, trials=1000, kills=100)
    options = parser.parse_args(argv)
    if options.worker is not None:
        work(options.worker, options.trials)
        return {}
    if options.make is not None:
        tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", ledger=options.make).close()
        return {}
    if options.look is not None:
        print(*_look_through(options.look, options.trials).values())
        return {}
    missing = [name for name in ("ip", "redis-server", "redis-cli") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        parser.error(f"a storm in namespaces needs {', '.join(missing) or 'root'}, which is not here")
    return finish_storm("scale_partitions", options, _storm(options))


if __name__ == "__main__":
    main()
