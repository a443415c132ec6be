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

_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def main() -> None:
    """Take the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--view", default="overview")
    parser.add_argument("--size", default="1200x860", help="in pixels")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--browser", default=shutil.which("chromium") or shutil.which("google-chrome"))
    arguments = parser.parse_args()
    width, height = map(int, arguments.size.split("x"))
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "trainwright", "ui", str(arguments.study), "--port", "0"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server,
        sync_playwright() as playwright,
    ):
        try:
            found = re.search(r"http://\S+", server.stdout.readline() if server.stdout is not None else "")
            if found is None:
                sys.exit(f"no page over {arguments.study}: run `trainwright ui {arguments.study}` to see why")
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
