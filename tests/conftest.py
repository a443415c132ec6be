"""What tests of several packages share; as it lies here, pytest puts this directory on the path: see `strategies`."""

import gc
import os
import shutil
import signal
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

# No test asserts on a clock: how long an example takes says what else runs on the machine.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# Read when torch and numba are loaded: small work is slower on several threads, far slower where cores are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Where the environment forbids bytecode, each of many processes would compile the package, and pytest all tests, anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# In the background of a shell Ctrl-C is ignored, here and in every process that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Return one process more than processors: nearly half of the suite's time its tests wait for others."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish():
    """Keep what is loaded from the garbage collector: with torch and all tests, each collection takes long."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _handlers_of_signals_as_before():
    """Put back what a command that ran in this process has set: SIGUSR1 would be Ctrl-C for the tests that follow."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# What no machine of ours can offer, or what is too large for the set-up: such a skip is no fault of it.
UNAVOIDABLE = ("needs a CUDA device", "root may write anywhere", "No module named 'transformers'")


# Fixtures that bring a program of others into a test.
BROUGHT_BY = {"chromium": "a browser", "read_runs": "TensorBoard", "empty_store": "MLflow"}


def pytest_collection_modifyitems(items):
    """Mark the tests that talk to a program of others through a fixture."""
    for item in items:
        for name in BROUGHT_BY.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.outside(BROUGHT_BY[name]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Let the report of a test name what it talked to, so that it reaches the process that counts."""
    report = yield
    report.outside = sorted({name for mark in item.iter_markers("outside") for name in mark.args})
    return report


def pytest_terminal_summary(terminalreporter):
    """Say how many tests met each program that is not ours."""
    passed = terminalreporter.stats.get("passed", [])
    met = Counter(name for report in passed for name in getattr(report, "outside", ()))
    if met:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(met.items()))
        terminalreporter.write_line(f"tests that met what is not ours: {counts}")


def pytest_sessionfinish(session):
    """Fail a run of CI in which a test was skipped for want of a package, a server or a browser."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("CI") or hasattr(session.config, "workerinput"):
        return
    reasons = {str(report.longrepr) for report in reporter.stats.get("skipped", [])}
    wanted = sorted(reason for reason in reasons if not any(known in reason for known in UNAVOIDABLE))
    if wanted:
        reporter.write_line(f"CI: skipped for want of something: {'; '.join(wanted)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def chromium():
    """Return the path of a browser; tests skip where there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs a browser: neither chromium nor google-chrome is installed")
    return program


@pytest.fixture(scope="module")  # not of the session: while Playwright runs, no other event loop can in this thread
def browser(chromium):
    """Return a browser that is steered by Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with playwright.sync_playwright() as play:
        launched = play.chromium.launch(executable_path=chromium, args=flags)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser):
    """Return a function that opens an address; an error of a page, or a request to another place, fails the test.

    Ask for what serves the address before this fixture, so that pages are closed before their server.
    With `refusals=True` the server may refuse what the page asks of it, which a browser too notes as an error.
    """
    contexts, wrong = [], []

    def opened(address, *, width, height, refusals=False, **settings):
        def heard(message):
            if message.type == "error" and not (refusals and message.text.startswith("Failed to load resource")):
                wrong.append(message.text)

        def asked(request):
            if not request.url.startswith((address, "data:")):
                wrong.append(request.url)

        contexts.append(browser.new_context(viewport={"width": width, "height": height}, **settings))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", heard)
        page.on("request", asked)
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong
