"""Pages of a built site in a real browser: how wide they are, what is broken, what they complain of.

A page is shown in a frame of the width asked for (a window of Chromium's cannot be as narrow as a phone), from a server
of our own that counts what it could not find.
"""

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from pathlib import Path
from urllib.parse import urlsplit

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# First in each page: complaints are kept, and the theme is the one asked for.
WATCH = """<script>
  window.complaints = [];
  addEventListener("error", ({message, target}) =>
    complaints.push(message || "not loaded: " + (target.src || target.href)), true);
  addEventListener("unhandledrejection", event => complaints.push(String(event.reason)));
  for (const name of ["error", "warn"]) console[name] = (...words) => complaints.push(words.join(" "));
  localStorage.setItem("theme", new URLSearchParams(location.search).get("theme") || "light");
</script>"""

FRAMES = """<!doctype html><body style="margin:0"><script>
const views = VIEWS;
function show(view) {
  const frame = document.createElement("iframe");
  frame.style = `display:block;border:0;width:${view.width}px;height:${view.height}px`;
  frame.src = `/${view.page}?theme=${view.theme}`;
  document.body.append(frame);
  return new Promise(done => frame.addEventListener("load", () => setTimeout(() => done(frame), 300)));
}
function seen(frame) {
  const {document: page, innerWidth} = frame.contentWindow;
  const beyond = [...page.querySelectorAll("article :is(img, p, li, h1, h2, pre, table)")].filter(
    each => each.getBoundingClientRect().right > innerWidth + 1 && !each.closest(".table-wrapper, pre code"));
  const images = [...page.images];
  return {
    width: innerWidth, overflow: page.documentElement.scrollWidth - innerWidth,
    beyond: beyond.map(each => each.outerHTML.slice(0, 80)), title: page.title, images: images.length,
    broken: images.filter(image => !image.complete || image.naturalWidth === 0).map(image => image.src),
    unnamed: images.filter(image => !image.alt).length,
    outputs: page.querySelectorAll(".highlight-python + .highlight-text").length,
    complaints: frame.contentWindow.complaints,
  };
}
addEventListener("load", async () => {
  const found = [];
  for (const view of views) {
    const frame = await show(view);
    found.push(seen(frame));
    if (views.length > 1) frame.remove();
  }
  const probe = document.createElement("pre");
  probe.id = "probe";
  probe.hidden = true;
  probe.textContent = JSON.stringify(found);
  document.body.append(probe);
});
</script>"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if urlsplit(self.path).path == "/frames":
            self._answer(self.server.frames.encode())  # type: ignore[attr-defined]
        elif path.suffix == ".html" and path.is_file():
            self._answer(path.read_text().replace("<head>", "<head>" + WATCH, 1).encode())
        else:
            super().do_GET()

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code, message=None, explain=None) -> None:
        if not self.path.startswith("/favicon"):
            self.server.missing.append(self.path)  # type: ignore[attr-defined]
        super().send_error(code, message, explain)

    def log_message(self, format, *args) -> None:
        pass


class Site:
    """A folder of pages, served while the context lasts."""

    def __init__(self, folder: Path, scratch: Path):
        handler = functools.partial(_Handler, directory=str(folder))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.missing, self.scratch = [], scratch  # type: ignore[attr-defined]

    def __enter__(self) -> "Site":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def missing(self) -> list[str]:
        """What was asked for and is not there."""
        return self._server.missing  # type: ignore[attr-defined]

    def look(self, *views: tuple[str, int], theme: str = "light") -> list[dict]:
        """What the browser sees of each page at each width."""
        dom = self._browse(views, theme, 900, "--dump-dom")
        text = re.search(r'<pre id="probe"[^>]*>(.*?)</pre>', dom, re.DOTALL)
        assert text, dom[:2000]
        return json.loads(text[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))

    def picture(self, page: str, width: int, path: Path, *, height: int = 2000, theme: str = "light") -> None:
        """A picture of a page."""
        self._browse(
            [(page, width)], theme, height, f"--screenshot={path}", f"--window-size={max(width, 500)},{height}"
        )

    def _browse(self, views, theme: str, height: int, *options: str) -> str:
        shown = [{"page": page, "width": width, "height": height, "theme": theme} for page, width in views]
        self._server.frames = FRAMES.replace("VIEWS", json.dumps(shown))  # type: ignore[attr-defined]
        quiet = "--no-first-run --disable-background-networking --disable-component-update --disable-sync"
        command = [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *quiet.split(),
            "--hide-scrollbars", f"--user-data-dir={self.scratch / 'profile'}", "--virtual-time-budget=60000", *options,
            f"http://127.0.0.1:{self._server.server_port}/frames",
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout
