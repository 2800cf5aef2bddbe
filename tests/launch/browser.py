"""Headless Chromium for tests, driven over a pipe: no server, no driver, no further package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Page:
    """A tab. `errors` collects console errors, uncaught exceptions and refused content; `requests`
    whatever it asked of the network beside the page itself."""

    def __init__(self, inbound: int, outbound: int) -> None:
        self._inbound, self._outbound = inbound, outbound
        self._buffer, self._next, self._session = b"", 0, None
        self.errors: list[str] = []
        self.requests: list[str] = []

    def open(self, path: Path | str, width: int = 1280, height: int = 900) -> None:
        """Load a file, or an address, and wait until its scripts have run."""
        if self._session is None:
            target = self.send("Target.createTarget", url="about:blank")["targetId"]
            attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Runtime", "Log", "Network", "Page"):
                self.send(f"{domain}.enable")
        self.resize(width, height)
        self.errors.clear()
        self.requests.clear()
        url = path if isinstance(path, str) else path.absolute().as_uri()
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def resize(self, width: int, height: int, dark: bool = False) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A DevTools command and its result."""
        self._next += 1
        number, message = self._next, {"id": self._next, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._outbound, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == number:
                assert "error" not in reply, reply["error"]
                return reply["result"]
            self._note(reply)

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        result = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, expression: str, seconds: float = 20) -> None:
        """Wait until an expression holds."""
        end = time.monotonic() + seconds
        while not self.js(expression):
            assert time.monotonic() < end, f"still not: {expression}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Press the mouse on the middle of an element."""
        box = f"document.querySelector({json.dumps(selector)})"
        self.js(f"{box}.scrollIntoView({{block: 'center'}})")
        x, y = self.js(
            f"(r => [r.left + r.width / 2, r.top + r.height / 2])({box}.getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press a key such as ArrowDown or Tab."""
        code = {"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for kind in ("rawKeyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, windowsVirtualKeyCode=code.get(key, 0),
            )  # fmt: skip

    def type(self, selector: str, text: str) -> None:
        """Replace what stands in a field, as if typed."""
        self.js(f"document.querySelector({json.dumps(selector)}).select()")
        self.js(f"document.querySelector({json.dumps(selector)}).focus()")
        self.send("Input.insertText", text=text)

    def select(self, selector: str, value: str) -> None:
        """Choose an option of a select."""
        chosen = f"s.focus(); s.value = {json.dumps(value)}; s.dispatchEvent(new Event('change'))"
        self.js(f"(s => {{ {chosen} }})(document.querySelector({json.dumps(selector)}))")

    def screenshot(self, path: Path) -> bytes:
        """The visible part as PNG."""
        image = base64.b64decode(self.send("Page.captureScreenshot")["data"])
        path.write_bytes(image)
        return image

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(json.dumps(params["entry"]))
            case "Network.requestWillBeSent" if params["type"] != "Document":
                self.requests.append(params["request"]["url"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._inbound, 1 << 20)
            assert more, "Chromium has ended"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors are clear of 3 and 4."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high


@contextmanager
def chromium() -> Iterator[Page]:
    """A browser with one tab; it and its profile go at the end."""
    from_browser, to_us = _pipe()
    from_us, to_browser = _pipe()
    # DevTools reads descriptor 3 and writes 4; the shell puts ours there.
    shell = f'exec "$0" "$@" 3<&{from_us} 4>&{to_us}'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                "bash", "-c", shell, CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                "--hide-scrollbars", f"--user-data-dir={profile}", "--remote-debugging-pipe",
            ],
            pass_fds=(from_us, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(from_us)
        os.close(to_us)
        try:
            yield Page(from_browser, to_browser)
        finally:
            process.kill()
            process.wait()
            os.close(from_browser)
            os.close(to_browser)
