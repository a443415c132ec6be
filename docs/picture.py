"""Make a picture of the live page: `python docs/picture.py runs/demo docs/_static/page.png` after `make demo`.

Starts `trainwright ui` on the study, opens a view in headless Chromium, and keeps what is seen, with few colours.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def main() -> None:
    """Take the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--view", default="overview")
    parser.add_argument("--size", default="1200x860", help="in pixels")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--browser", default=next(filter(None, map(shutil.which, _BROWSERS)), None))
    arguments = parser.parse_args()
    width, height = map(int, arguments.size.split("x"))
    if arguments.browser is None:
        sys.exit(f"no picture: there is no browser here to take it with ({', '.join(_BROWSERS)})")
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        sys.exit("no picture: it needs playwright, which drives the browser: pip install playwright")

    command = [sys.executable, "-m", "trainwright", "ui", str(arguments.study), "--port", "0"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        try:
            found = re.search(r"http://\S+", server.stdout.readline() if server.stdout is not None else "")
            if found is None:  # it has said why
                sys.exit(f"no picture: there is no page over {arguments.study}")
            browser = playwright.chromium.launch(executable_path=arguments.browser, args=_FLAGS)
            scheme = "dark" if arguments.dark else "light"
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(found[0])
            page.wait_for_selector('#live[data-state="live"]', timeout=120_000)
            page.goto(f"{page.url.rpartition('/')[0]}/{arguments.view}")
            page.wait_for_selector("[data-drawn]", timeout=120_000)
            page.wait_for_selector(".working", state="detached", timeout=300_000)
            page.wait_for_timeout(500)
            raw = Path(folder) / "page.png"
            page.screenshot(path=raw)
            browser.close()
            _thin(raw, arguments.picture)
            print(f"picture:    {arguments.picture}")  # noqa: T201 -- a script
        except Error as error:
            sys.exit(f"no picture: {arguments.browser} failed: {error.message.splitlines()[0]}")
        finally:
            server.terminate()


def _thin(raw: Path, picture: Path) -> None:
    try:
        from PIL import Image
    except ImportError:  # larger, that is all
        shutil.copy(raw, picture)
        return
    few = Image.open(raw).convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(picture, optimize=True)


if __name__ == "__main__":
    main()
