"""Chromium without a window, driven over a pipe: what a reader of a page sees, hears and types."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Seconds after which a browser counts as stuck, on a busy machine, too.
STALLED = 60
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
)


def find() -> str | None:
    """The Chromium of this machine."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A page in Chromium, which commands of the DevTools protocol act upon."""

    def __init__(self, reading: int, writing: int) -> None:
        self._in, self._out = reading, writing
        self._number, self._session, self._rest = 0, "", b""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Send a command; its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], STALLED)
            assert ready, f"Chromium has not answered for {STALLED} s"
            part = os.read(self._in, 1 << 20)
            assert part, "Chromium has ended"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        if "method" in found:
            self.events.append(found)
        return found

    def open(self, page: Path, fragment: str = "") -> None:
        """Open a file, and wait until it is loaded."""
        for url in ("about:blank", f"{page.as_uri()}{fragment}"):  # else only the fragment changes
            self.events.clear()
            self.call("Page.navigate", url=url)
            while not any(one["method"] == "Page.loadEventFired" for one in self.events):
                self._next()

    def value(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
            )

    def complaints(self) -> list[str]:
        """What the browser logged: errors of scripts, violations of the policy, missing files."""
        kinds = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [json.dumps(one["params"]) for one in self.events if one["method"] in kinds]

    def heard(self) -> list[tuple[str, str]]:
        """Role and name of all that a screen reader finds."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        shown = (node for node in nodes if not node["ignored"])
        return [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in shown]

    def look(self, *, width: int, height: int, dark: bool = False) -> None:
        """Set the size of the window, and what the reader prefers."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def screenshot(self, path: Path) -> None:
        """Save what the window shows."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Browser]:
    """A browser with an empty ``profile``."""
    to_read, to_write = os.pipe(), os.pipe()
    # the program reads commands from descriptor 3 and writes answers to 4
    shell = f'exec "$0" "$@" 3<&{to_read[0]} 4>&{to_write[1]}'
    process = subprocess.Popen(
        ["bash", "-c", shell, program, *OPTIONS, f"--user-data-dir={profile}"],
        pass_fds=(to_read[0], to_write[1]),
        stderr=subprocess.DEVNULL,
        # crash reports go there, and unit tests have set it to a folder that must not exist
        env={**os.environ, "XDG_CONFIG_HOME": str(profile)},
    )
    os.close(to_read[0])
    os.close(to_write[1])
    try:
        yield Browser(to_write[0], to_read[1])
    finally:
        os.close(to_read[1])
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
