"""The page in a browser: it draws under its own policy, is live, is used by keyboard, and fits a narrow screen."""

import shutil
import threading

import pytest

from trainwright.errors import ListenError
from trainwright.ui import serve_page
from trainwright.ui.study_follower import StudyRegistry

pytest.importorskip("fastapi", reason="needs the extra ui")
uvicorn = pytest.importorskip("uvicorn", reason="needs the extra ui")

from trainwright.http_security import Guard, bind  # noqa: E402 -- after the checks
from trainwright.ui.app import POLICY, application  # noqa: E402


@pytest.fixture
def address(registry):
    """Serve the page from a thread, as a process of its own would take seconds to start."""
    listener = bind("127.0.0.1", 0)
    guard = Guard(application(registry), host="127.0.0.1", token=None, headers={"content-security-policy": POLICY})
    config = uvicorn.Config(guard, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(20)
    listener.close()


@pytest.fixture
def page(address, open_page):  # in this order: the page is closed before its server
    return open_page(f"{address}/", width=1280, height=900)


def painted(page, selector):
    """Return whether anything was drawn on a canvas."""
    return page.evaluate(
        "selector => { const c = document.querySelector(selector);"
        " return new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)"
        ".some(Boolean); }",
        selector,
    )


def test_from_the_list_to_a_trial_and_its_log(page):
    """Texts of a study are shown as they are."""
    page.click("text=digits")
    page.wait_for_selector('#live[data-state="live"]')
    page.wait_for_selector("[data-drawn] canvas")
    assert painted(page, "canvas")
    page.click("nav >> text=Trials")
    page.wait_for_selector("tbody a")
    # Nothing lies above what is to be clicked.
    for selector in ("#filter", "text=Best first"):
        page.click(selector, timeout=2000)
    page.fill("#filter", "failed")
    page.wait_for_selector("text=1 of 14 trials")
    page.click("tbody a")
    page.wait_for_selector("h1:has-text('Trial 13')")
    page.wait_for_selector("text=<b>no</b> & way")
    page.click("[aria-label='Previous trial']")
    page.wait_for_selector("text=epoch 2 <i>done</i>")
    assert page.locator("table caption").first.inner_text().startswith("Attempts")


@pytest.mark.slow
@pytest.mark.parametrize("view", ["curves", "parameters", "cluster"])
def test_every_view_of_figures_is_drawn(page, view):
    page.click("text=digits")
    page.click(f"nav a[href$='{view}']")
    page.wait_for_selector("[data-drawn] canvas")
    assert painted(page, "canvas")


def test_axes_and_trials_are_chosen(address, open_page):
    page = open_page(f"{address}/", width=1280, height=900, refusals=True)
    page.click("text=digits")
    page.click("nav a[href$='parameters']")
    page.wait_for_selector("figure:has-text('val_loss against lr') canvas")
    page.select_option("#across", "seconds")
    page.wait_for_selector("figure:has-text('val_loss against seconds')")
    page.fill("#chosen", "1,2,3")
    page.wait_for_selector("figure:has-text('3 results.')")
    page.fill("#chosen", "lr<abc")
    page.wait_for_selector("text='abc' is no number")
    page.click("nav a[href$='curves']")
    page.fill("#chosen", "4,7")
    page.wait_for_selector("figure:has-text('2 trials, one line each.')")


def test_studies_are_compared(page, tmp_path, Scribe):
    other = Scribe(tmp_path / "letters")
    for number in range(4):
        other.trial(number)
    page.wait_for_selector("text=letters", timeout=20000)
    page.check("[aria-label='compare digits']")
    page.wait_for_selector("text=Mark another study")
    page.check("[aria-label='compare letters']")
    page.wait_for_selector("figure:has-text('Best val_loss so far') canvas")
    page.wait_for_selector("figure:has-text('Empirical distribution')")
    page.uncheck("[aria-label='compare letters']")
    page.wait_for_selector("figure", state="detached")


def test_it_shows_what_is_written_while_it_is_open(page, small):
    page.click("text=digits")
    page.wait_for_selector("text=12 complete")
    small.trial(40)
    page.wait_for_selector("text=13 complete")
    page.click("nav >> text=Trials")
    page.wait_for_selector("text=15 trials")
    small.trial(41)
    page.wait_for_selector("text=16 trials")


def test_the_keyboard_is_enough(page):
    """Skip link first, a visible focus, headings that take it, columns sorted and points told by keys."""
    page.click("text=digits")
    page.wait_for_selector("[data-drawn] canvas")
    page.reload()
    page.wait_for_selector("[data-drawn] canvas")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.focus("nav >> text=Trials")
    page.keyboard.press("Enter")
    page.wait_for_selector("tbody a")
    assert page.evaluate("document.activeElement.tagName") == "H1"
    page.focus("button[data-column='lr']")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector("th[aria-sort='ascending'] >> text=lr")
    page.keyboard.press("Enter")
    page.wait_for_selector("th[aria-sort='descending'] >> text=lr")
    assert page.evaluate("document.activeElement.dataset.column") == "lr"
    page.focus("nav >> text=Overview")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-drawn] canvas")
    page.focus("canvas >> nth=0")
    page.keyboard.press("ArrowRight")
    assert "trial" in page.inner_text(".tip.on")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('Trial')")


def test_a_point_chosen_by_keys_stays_chosen(page, small):
    """Neither a new result nor a pointer that lies still takes it away."""
    page.click("text=digits")
    page.wait_for_selector("[data-drawn] canvas")
    page.focus("canvas >> nth=0")
    page.keyboard.press("ArrowRight")
    told = page.inner_text(".tip.on")
    small.trial(40)
    page.wait_for_selector("text=13 complete")
    page.wait_for_function("document.querySelector('[data-updated]') !== null")
    page.set_viewport_size({"width": 1000, "height": 900})
    page.locator("canvas >> nth=0").dispatch_event("pointerleave")
    assert page.inner_text(".tip.on") == told
    page.keyboard.press("Escape")
    page.wait_for_selector(".tip.on", state="detached")


@pytest.mark.slow
def test_a_drag_zooms_and_escape_zooms_out(page):
    page.click("text=digits")
    page.click("nav a[href$='curves']")
    page.wait_for_selector("[data-drawn] canvas")
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 160, steps=4)
    page.mouse.up()
    page.wait_for_selector(".reset:visible")
    page.focus("canvas")
    page.keyboard.press("Escape")
    page.wait_for_selector(".reset", state="hidden")


@pytest.mark.slow
def test_a_figure_is_saved_as_svg(page):
    page.click("text=digits")
    page.wait_for_selector("[data-drawn] canvas")
    with page.expect_download() as download:
        page.click("text=Save as SVG >> nth=0")
    with open(download.value.path(), encoding="utf-8") as file:  # noqa: PTH123 -- playwright gives a text or a path
        text = file.read()
    assert text.startswith("<svg ")
    assert "best so far" in text
    assert "NaN" not in text


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_narrow_screen_and_both_themes(address, open_page, scheme):
    page = open_page(f"{address}/", width=360, height=700, color_scheme=scheme, reduced_motion="reduce")
    page.click("text=digits")
    page.wait_for_selector("[data-drawn] canvas")
    study = page.evaluate("location.hash.split('/')[1]")
    for view in ("overview", "trials", "trials/12", "curves", "parameters", "cluster"):
        page.evaluate("hash => { location.hash = hash; }", f"#/{study}/{view}")
        page.wait_for_selector("[data-drawn]")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) is (scheme == "dark")


def test_a_port_in_use_and_a_vanished_study(small, tmp_path, page):
    with bind("127.0.0.1", 0) as taken, pytest.raises(ListenError, match="address already in use; give another --port"):
        serve_page(tmp_path, port=taken.getsockname()[1])
    page.click("text=digits")
    page.wait_for_selector("text=12 complete")
    shutil.rmtree(small.directory)
    page.wait_for_selector("text=The ledger cannot be read now")
    assert page.locator("text=12 complete").is_visible()


@pytest.mark.slow
def test_studies_that_come_later_are_listed(page, tmp_path, Scribe):
    page.wait_for_selector("text=digits")
    Scribe(tmp_path / "later").trial(0)
    page.wait_for_selector("a:has-text('later')")
    assert StudyRegistry(tmp_path / "later").single
