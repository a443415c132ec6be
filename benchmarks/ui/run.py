"""The live page in a browser: how soon it is there, and how soon it shows what another process has written.

A study of 10,000 trials with 27 epochs each is written, `trainwright ui` follows it, and Chromium opens its views.
`first_paint_ms`: from the start of navigation until the overview's figures, and the first rows of the table, are
painted (the slower of the two; median of the visits), once the server has read the ledger (`load_seconds`).
`update_ms`: from the moment the page hears of a change until the new figures or rows are painted (the slowest view's
median). `seen_ms`: from the append in this process until then, with all polling in between.

There is no peer in the same run: Optuna's dashboard reads other ledgers.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "src"))

from benchmarks._report import add_arguments, environment, finish, progress, table
from benchmarks.ui import ledgers

from trainwright.ledger import DirectoryLedger
from trainwright.randomness import rng

_BROWSER = "/usr/bin/chromium"
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
_VIEWS = {"overview": "[data-drawn] canvas", "trials": "[data-drawn] tbody a", "curves": "[data-drawn] canvas"}
_SETTLED = (
    "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"
)


_WORDS = {
    "first_paint_ms": "first paint, overview or trials, the slower",
    "curves_paint_ms": "first paint, all learning curves",
    "update_ms": "from news to paint, slowest view",
    "seen_ms": "from another process's write to paint, slowest view",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=27)
    parser.add_argument("--visits", type=int, default=5, help="of each view")
    parser.add_argument("--updates", type=int, default=8, help="of each view")
    parser.add_argument("--study", type=Path, help="a study that was written before, to be added to")
    parser.add_argument("--browser", default=_BROWSER, help="Chromium's program")
    add_arguments(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = arguments.study
        if directory is None:
            progress(f"writing {arguments.trials:,} trials of {arguments.epochs} epochs")
            directory = ledgers.write_study(Path(folder) / "study", trials=arguments.trials, epochs=arguments.epochs)
        result = measured(directory, arguments)
    summary = result["summary"]
    header = [f"{arguments.trials:,} trials of {arguments.epochs} epochs", "median ms"]
    rows = [[words, f"{summary[name]:.0f}"] for name, words in _WORDS.items()]
    print(table(header, rows))
    finish({**result, "table": {"header": header, "rows": rows}}, arguments)


def measured(directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the result of all visits and updates."""
    from playwright.sync_api import sync_playwright

    began = time.perf_counter()
    command = [sys.executable, "-m", "trainwright", "ui", str(directory), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None, "the server did not start"
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=arguments.browser, args=list(_FLAGS))
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                page.goto(found[0])
                page.wait_for_selector('#live[data-state="live"]', timeout=300_000)
                loaded = time.perf_counter() - began
                place = page.url.rpartition("/")[0]
                paints = {name: visits(page, place, name, arguments.visits) for name in _VIEWS}
                writer = DirectoryLedger(directory / "ledger")
                number = arguments.trials
                updates: dict[str, list[tuple[float, float]]] = {}
                for name in _VIEWS:
                    updates[name], number = changes(
                        page, place, name, writer=writer, number=number, arguments=arguments
                    )
                writer.close()
                browser.close()
        finally:
            server.terminate()
    return {
        "benchmark": "ui",
        "environment": environment(),
        "first_paint_ms": paints,
        "update_ms": {name: [each[0] for each in pairs] for name, pairs in updates.items()},
        "seen_ms": {name: [each[1] for each in pairs] for name, pairs in updates.items()},
        "summary": {
            "trials": arguments.trials,
            "epochs": arguments.epochs,
            "load_seconds": loaded,
            "first_paint_ms": max(median(paints[name]) for name in ("overview", "trials")),
            "curves_paint_ms": median(paints["curves"]),
            "update_ms": max(median(each[0] for each in pairs) for pairs in updates.values()),
            "seen_ms": max(median(each[1] for each in pairs) for pairs in updates.values()),
        },
    }


def visits(page: Any, place: str, name: str, times: int) -> list[float]:
    """Return the milliseconds from navigation to paint of some visits; each begins on an empty page."""
    found = []
    for _ in range(times):
        page.goto("about:blank")
        page.goto(f"{place}/{name}", wait_until="commit")
        page.wait_for_selector(_VIEWS[name], timeout=60_000)
        found.append(float(page.evaluate(_SETTLED)))
    progress(f"{name}: painted after {', '.join(f'{each:.0f}' for each in found)} ms")
    return found


def changes(
    page: Any, place: str, name: str, *, writer: DirectoryLedger, number: int, arguments: argparse.Namespace
) -> tuple[list[tuple[float, float]], int]:
    """Return the milliseconds from hearing, and from the append, to paint, of some new trials; and the next number."""
    page.goto("about:blank")
    page.goto(f"{place}/{name}")
    page.wait_for_selector(_VIEWS[name], timeout=60_000)
    page.wait_for_timeout(2500)
    found = []
    space = ledgers.SPACE
    for _ in range(arguments.updates):
        configuration = space.configurations(space.sample(rng(1, "benchmark update", number), 1))[0]
        records = [record for record, _ in ledgers.trial_records(number, configuration, epochs=arguments.epochs)]
        number += 1
        page.evaluate("() => document.querySelectorAll('[data-updated]').forEach(each => delete each.dataset.updated)")
        began = time.perf_counter()
        writer.append(records)
        page.wait_for_selector("[data-updated]", state="attached", timeout=60_000)
        seen = 1000 * (time.perf_counter() - began)
        found.append((float(page.get_attribute("[data-updated]", "data-updated")), seen))
        page.wait_for_timeout(2000)  # longer than the page's own pause between two drawings
    progress(
        f"{name}: " + said([each[0] for each in found]) + " ms after hearing, " + said([each[1] for each in found])
    )
    return found, number


def said(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values)


if __name__ == "__main__":
    main()
