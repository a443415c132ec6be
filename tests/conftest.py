"""What tests of several packages share; as it lies here, pytest puts this directory on the path: see `strategies`."""

import gc
import os
import shutil
import signal
import sys

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
