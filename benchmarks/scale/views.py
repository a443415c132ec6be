"""A storm over file systems with caches: workers see one study through views that know of each other late.

    python -m benchmarks.scale.views --views 3 --workers 6 --trials 200 --kills 40 --stops 10 --json

Needs root and bindfs (FUSE); elsewhere it says what is missing. Each view is a mount of the same folder by a process of
its own, whose kernel remembers names, missing names and sizes of files for `--cache` seconds, as clients of a network
file system do. Each worker has a namespace of processes of its own, as on another host. Workers die by SIGKILL and are
replaced, and the process behind a view stops for up to `--longest` seconds, so that all who use it wait. When all
trials have a result, the records are looked through in the folder itself: trials without a result are lost, those with
two ends doubled.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.scale.partitions import add_storm_arguments, finish_storm, run_storm, start_worker, work
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


def _storm(options: argparse.Namespace) -> dict[str, int]:
    draws = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "errors").open("w") as errors:
        store = Path(folder) / "store"
        store.mkdir()
        tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory=store / "study").close()
        views = [Path(folder) / f"view{number}" for number in range(options.views)]

        def start(number: int) -> subprocess.Popen[bytes]:
            where = str(views[number % options.views] / "study")
            # As on hosts of their own: nobody can look at the processes of others.
            apart = ("/usr/bin/env", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
            return start_worker("benchmarks.scale.views", where, options.trials, errors, *apart)

        with _mounted(store, views, options.cache) as mounts:

            def stop() -> None:
                mount = mounts[draws.randrange(options.views)]
                mount.send_signal(signal.SIGSTOP)
                time.sleep(draws.uniform(0.1, options.longest))
                mount.send_signal(signal.SIGCONT)

            struck = run_storm(options, draws, start, {"stops": stop})
        return {**_look_through(str(store / "study"), options.trials), **struck}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the storm and print what the records say."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--views", type=int, default=3)
    parser.add_argument("--stops", type=int, default=10)
    parser.add_argument("--cache", type=float, default=30.0, help="seconds that a view may be behind")
    add_storm_arguments(parser, workers=6, trials=200, kills=40)
    options = parser.parse_args(argv)
    if options.worker is not None:
        work(options.worker, options.trials)
        return {}
    missing = [name for name in ("bindfs", "umount", "unshare") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        parser.error(f"a storm over views needs {', '.join(missing) or 'root'}, which is not here")
    return finish_storm("scale_views", options, _storm(options))


if __name__ == "__main__":
    main()
