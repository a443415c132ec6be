"""A storm over file systems with caches: workers see one study through views that know of each other late.

    python -m benchmarks.scale.views --views 3 --workers 6 --trials 200 --kills 40 --stops 10 --json

Needs root and bindfs (FUSE); elsewhere it says what is missing. Each view is a mount of the same folder by a process of
its own, whose kernel remembers names, missing names and sizes of files for `--cache` seconds, as clients of a network
file system do. Workers die by SIGKILL and are replaced, and the process behind a view stops for up to `--longest`
seconds, so that all who use it wait. When all trials have a result, the records are looked through in the folder
itself: trials without a result are lost, those with two ends doubled.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._report import ROOT, add_arguments, environment, finish, progress
from benchmarks.scale.partitions import _work
from benchmarks.scale.team import _look_through

import trainwright as tw

__all__ = ["main"]


@contextmanager
def _mounted(store: Path, views: list[Path], seconds: float) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Mount the folder at each of the views, with caches of so many seconds; they are gone afterwards."""
    caches = ",".join(f"{name}_timeout={seconds:g}" for name in ("attr", "entry", "negative"))
    running: list[subprocess.Popen[bytes]] = []
    try:
        for view in views:
            view.mkdir()
            running.append(subprocess.Popen(["/usr/bin/env", "bindfs", "-f", "-o", caches, store, view]))
            until = time.monotonic() + 30
            while not view.is_mount():
                if time.monotonic() > until:
                    raise SystemExit("views: bindfs does not mount here")
                time.sleep(0.05)
        yield running
    finally:
        for view in views:
            subprocess.run(["/usr/bin/env", "umount", "-l", view], check=False, capture_output=True)
        for each in running:
            each.terminate()
            each.wait()


def _storm(options: argparse.Namespace) -> dict[str, Any]:
    draws = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "errors").open("w") as errors:
        store = Path(folder) / "store"
        store.mkdir()
        tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory=store / "study").close()
        views = [Path(folder) / f"view{number}" for number in range(options.views)]

        def start(number: int) -> subprocess.Popen[bytes]:
            words = [sys.executable, "-W", "ignore", "-m", "benchmarks.scale.views", "--trials", str(options.trials)]
            words += ["--worker", str(views[number % options.views] / "study")]
            variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
            return subprocess.Popen(words, cwd=ROOT, env=variables, stderr=errors)

        with _mounted(store, views, options.cache) as mounts:
            running = [start(number) for number in range(options.workers)]
            stops, kills, until = 0, 0, time.monotonic() + options.seconds
            while any(each.poll() is None for each in running) and time.monotonic() < until:
                time.sleep(draws.uniform(0.5, 1.5))
                number = draws.randrange(options.workers)
                if stops < options.stops and draws.random() < options.stops / (options.stops + options.kills):
                    mount = mounts[draws.randrange(options.views)]
                    mount.send_signal(signal.SIGSTOP)
                    time.sleep(draws.uniform(0.1, options.longest))
                    mount.send_signal(signal.SIGCONT)
                    stops += 1
                elif kills < options.kills and running[number].poll() is None:
                    running[number].kill()
                    running[number].wait()
                    running[number] = start(number)
                    kills += 1
            unfinished = sum(each.poll() is None for each in running)
            for each in running:
                each.kill()
                each.wait()
        if unfinished:
            raise SystemExit(f"views: {unfinished} workers were not done after {options.seconds:g} s; raise --seconds")
        return {**_look_through(str(store / "study"), options.trials), "stops": stops, "kills": kills}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the storm and print what the records say."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--views", type=int, default=3)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--stops", type=int, default=10)
    parser.add_argument("--cache", type=float, default=30.0, help="seconds that a view may be behind")
    parser.add_argument("--longest", type=float, default=5.0, help="seconds that a view stops")
    parser.add_argument("--seconds", type=float, default=600.0, help="at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", metavar="FOLDER", help=argparse.SUPPRESS)
    add_arguments(parser)
    options = parser.parse_args(argv)
    if options.worker is not None:
        _work(options.worker, options.trials)
        return {}
    missing = [name for name in ("bindfs", "umount") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        parser.error(f"a storm over views needs {', '.join(missing) or 'root'}, which is not here")
    found = _storm(options)
    progress(str(found))
    print(f"{found['kills']} kills, {found['stops']} stopped views: {found['lost']} lost, {found['doubled']} doubled")
    result = {"benchmark": "scale_views", "summary": found, "seed": options.seed, "environment": environment()}
    finish(result, options)
    return result


if __name__ == "__main__":
    main()
