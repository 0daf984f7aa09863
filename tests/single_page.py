"""A page that is one file, in Chromium: what it says of its own width, images, links and errors.

It is shown in a frame of the width asked for: a window of Chromium's cannot be as narrow as a phone.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.browser import CHROMIUM

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: pages are not looked at")

_ERRORS = """
<script>
window.problems = [];
addEventListener("error", event => window.problems.push(event.message || "could not load " + event.target.src), true);
addEventListener("unhandledrejection", event => window.problems.push(String(event.reason)));
const say = console.error;
console.error = (...words) => { window.problems.push(words.join(" ")); say(...words); };
</script>
"""
_PROBE = """
<script>
addEventListener("load", () => {
  const images = [...document.images];
  parent.postMessage(JSON.stringify({
    images: images.length,
    broken: images.filter(image => !image.complete || image.naturalWidth === 0).length,
    unnamed: images.filter(image => !image.alt).length,
    tables: [...document.querySelectorAll("table.comparison")].map(table => table.tBodies[0].rows.length),
    sections: [...document.querySelectorAll("section")].map(section => section.id),
    headings: [...document.querySelectorAll("h1, h2, h3")].map(heading => Number(heading.tagName[1])),
    dead: [...document.querySelectorAll("a[href^='#']")].filter(a => !document.querySelector(a.hash)).length,
    requests: performance.getEntriesByType("resource").map(entry => entry.name)
      .filter(name => !name.startsWith("data:")),
    overflow: document.documentElement.scrollWidth - innerWidth,
    width: innerWidth,
    paper: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.body).color,
    problems: window.problems,
  }), "*");
});
</script>
"""
_FRAME = """<!doctype html><body style="margin:0"><script>
addEventListener("message", event => {
  const probe = document.createElement("pre");
  probe.id = "probe";
  probe.textContent = event.data;
  document.body.append(probe);
});
</script><iframe src="PAGE" style="border:0;width:WIDTHpx;height:900px"></iframe>"""


def command(folder: Path, width: int, dark: bool) -> list[str]:
    """Chromium without a screen, of a width."""
    assert CHROMIUM is not None
    quiet = "--no-first-run --disable-background-networking --disable-component-update --disable-sync --hide-scrollbars"
    return [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *quiet.split(),
        f"--user-data-dir={folder / f'profile-{width}'}", f"--window-size={max(width, 500)},900",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=10000",
    ]  # fmt: skip


def browse(page: Path, folder: Path, width: int, *, dark: bool = False) -> dict:
    """What a browser of this width says of the page."""
    probed = folder / f"probed-{width}.html"
    probed.write_text(page.read_text().replace("<head>", f"<head>{_ERRORS}").replace("</body>", _PROBE + "</body>"))
    framed = folder / f"framed-{width}.html"
    framed.write_text(_FRAME.replace("PAGE", probed.name).replace("WIDTH", str(width)))
    asked = [*command(folder, width, dark), "--dump-dom", framed.as_uri()]
    dom = subprocess.run(asked, capture_output=True, text=True, timeout=180, check=True).stdout
    return json.loads(re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)[1].replace("&gt;", ">"))
