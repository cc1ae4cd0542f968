"""A page in a real browser, where there is one: headless, offline, in a frame as wide as asked."""

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = """--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync
--disable-component-update --disable-dev-shm-usage --virtual-time-budget=2000""".split()  # noqa: SIM905

WRAP = """<!doctype html><body style="margin:0"><iframe style="border:0;width:{wide}px;height:{high}px" srcdoc="{page}">
</iframe><pre id="told"></pre><script>
document.querySelector("iframe").addEventListener("load", event => {{
  const page = event.target.contentDocument, view = event.target.contentWindow
  const measure = {measure}
  document.getElementById("told").textContent = JSON.stringify(measure(page, view))
}})
</script>"""


def ask(page: str, measure: str, folder: Path, wide: int = 390, high: int = 900, dark: bool = False) -> object:
    """What a JavaScript function (document, window) => value says about a page."""
    wrapped = folder / "wrapped.html"
    wrapped.write_text(WRAP.format(wide=wide, high=high, page=escape(page), measure=measure), encoding="utf-8")
    shade = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    command = [str(PATH), *FLAGS, *shade, f"--user-data-dir={folder / 'profile'}", "--dump-dom", wrapped.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="told">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(unescape(found[1]))
