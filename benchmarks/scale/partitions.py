"""A storm over a network: workers in namespaces of their own are cut off from Redis and killed; nothing is lost.

    python -m benchmarks.scale.partitions --workers 4 --trials 1000 --partitions 20 --kills 100 --json

Needs root, `ip` and redis-server; elsewhere it says what is missing. The server is in one network namespace of this
machine, each worker in another, joined by pairs of virtual cables. Links go down for up to `--longest` seconds, also
while a worker sends, and workers die by SIGKILL and are replaced. When all trials have a result, the records are looked
through: trials without a result are lost, those with two ends doubled.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._report import ROOT, add_arguments, environment, finish, progress
from benchmarks.scale.team import _look_through

import trainwright as tw

__all__ = ["main"]

_PREFIX = f"tw{os.getpid() % 100_000}"
_PORT = 6399


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


def _work(url: str, trials: int) -> None:
    """Run as one worker, and go on after each time that the server was out of reach for too long."""
    while True:
        try:
            worker = tw.Worker(where=url, train=_train, searcher=tw.RandomSearcher(), engine=tw.Local(workers=0))
            worker.run(trials=trials, progress=False)
        except tw.TrainwrightError as error:
            print(f"worker: {error}", file=sys.stderr, flush=True)
            time.sleep(0.5)
        else:
            return


def _storm(options: argparse.Namespace) -> dict[str, Any]:
    draws = random.Random(options.seed)
    me = [sys.executable, "-W", "ignore", "-m", "benchmarks.scale.partitions"]
    with tempfile.TemporaryDirectory() as folder, _networks(options.workers) as (server, members):
        into = ["/usr/bin/env", "ip", "netns", "exec"]
        redis = ["redis-server", "--port", str(_PORT), "--dir", folder, "--save", "", "--appendonly", "yes"]
        with (
            (Path(folder) / "errors").open("w") as errors,
            subprocess.Popen([*into, server, *redis, "--protected-mode", "no"], stdout=subprocess.DEVNULL) as store,
        ):
            time.sleep(1)

            def start(number: int) -> subprocess.Popen[bytes]:
                url = f"redis://10.199.{number}.1:{_PORT}/0?study=storm"
                words = [*into, members[number], *me, "--worker", url, "--trials", str(options.trials)]
                variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
                return subprocess.Popen(words, cwd=ROOT, env=variables, stderr=errors)

            make = ["--make", f"redis://127.0.0.1:{_PORT}/0?study=storm"]
            subprocess.run([*into, server, *me, *make], cwd=ROOT, check=True)
            running = [start(number) for number in range(options.workers)]
            cuts, kills, until = 0, 0, time.monotonic() + options.seconds
            while any(each.poll() is None for each in running) and time.monotonic() < until:
                time.sleep(draws.uniform(0.5, 1.5))
                number = draws.randrange(options.workers)
                if cuts < options.partitions and draws.random() < options.partitions / (
                    options.partitions + options.kills
                ):
                    _ip("link", "set", f"{_PREFIX}a{number}", "down", inside=members[number])
                    time.sleep(draws.uniform(0.1, options.longest))
                    _ip("link", "set", f"{_PREFIX}a{number}", "up", inside=members[number])
                    cuts += 1
                elif kills < options.kills and running[number].poll() is None:
                    running[number].kill()
                    running[number].wait()
                    running[number] = start(number)
                    kills += 1
            unfinished = sum(each.poll() is None for each in running)
            for each in running:
                each.kill()
            look = subprocess.run(
                [*into, server, *me, "--look", make[1], "--trials", str(options.trials)],
                cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            store.terminate()
    if unfinished:
        raise SystemExit(f"partitions: {unfinished} workers were not done after {options.seconds:g} s; raise --seconds")
    found: dict[str, Any] = dict(zip(("trials", "lost", "doubled"), map(int, look.stdout.split()), strict=True))
    return {**found, "partitions": cuts, "kills": kills}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the storm and print what the records say."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--longest", type=float, default=5.0, help="seconds that a link is down")
    parser.add_argument("--seconds", type=float, default=600.0, help="at most")
    parser.add_argument("--seed", type=int, default=0)
    for name in ("--worker", "--make", "--look"):
        parser.add_argument(name, metavar="URL", help=argparse.SUPPRESS)
    add_arguments(parser)
    options = parser.parse_args(argv)
    if options.worker is not None:
        _work(options.worker, options.trials)
        return {}
    if options.make is not None:
        tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", ledger=options.make).close()
        return {}
    if options.look is not None:
        print(*_look_through(options.look, options.trials).values())
        return {}
    missing = [name for name in ("ip", "redis-server") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        parser.error(f"a storm in namespaces needs {', '.join(missing) or 'root'}, which is not here")
    found = _storm(options)
    progress(str(found))
    print(f"{found['kills']} kills, {found['partitions']} partitions: {found['lost']} lost, {found['doubled']} doubled")
    result = {"benchmark": "scale_partitions", "summary": found, "seed": options.seed, "environment": environment()}
    finish(result, options)
    return result


if __name__ == "__main__":
    main()
