"""Chromium without a window, driven through two pipes: https://chromedevtools.github.io/devtools-protocol."""

from __future__ import annotations

import base64
import fcntl
import io
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy
from matplotlib.image import imread

DEADLINE_SECONDS = 120.0
NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",  # of root's processes it has none
    "--disable-gpu",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--disable-background-networking",
    "--remote-debugging-pipe",
)
_NOTED = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
_BEYOND_STANDARD_FILES = 10


def program() -> str:
    """The program. Raises FileNotFoundError if none is installed."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise FileNotFoundError(f"none of {', '.join(NAMES)} is in PATH: `make test-screens` installs one")
    return found


class Page:
    """A page that has been loaded. ``requests``: all URLs that it asked for; ``noted``: what it, or the
    browser, wrote to the console."""

    def __init__(self, commands: int, answers: int) -> None:
        self.requests: list[str] = []
        self.noted: list[dict[str, Any]] = []
        self._commands, self._answers = commands, answers
        self._number = 0
        self._read = b""
        self._session: str | None = None
        self._loaded = False

    def open(self, url: str) -> None:
        """Load it, and wait until it is complete."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self._loaded:
            self._take(deadline)

    def evaluate(self, expression: str) -> Any:
        """A value of JavaScript that JSON can hold."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def png(self) -> bytes:
        """The whole page as it is drawn."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def picture(self) -> numpy.ndarray[Any, numpy.dtype[numpy.uint8]]:
        """The same as rows of pixels, each red, green and blue."""
        read = imread(io.BytesIO(self.png()), format="png")
        return (read[:, :, :3] * 255).round().astype(numpy.uint8)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and what is answered."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        command = {"id": self._number, "method": method, "params": parameters, **session}
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            answer = self._take(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result

    def _take(self, deadline: float) -> dict[str, Any]:
        """The next message; events are noted."""
        while b"\0" not in self._read:
            if not select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"the browser has not answered within {DEADLINE_SECONDS} s")
            more = os.read(self._answers, 1 << 20)
            if not more:
                raise EOFError("the browser has ended")
            self._read += more
        text, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        match message.get("method", ""):
            case "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            case "Page.loadEventFired":
                self._loaded = True
            case name if name in _NOTED:
                self.noted.append(message["params"])
        return message


@contextmanager
def opened(file: Path, log: Path, width: int = 1150, height: int = 1180) -> Iterator[Page]:
    """This file in a browser of its own; ``log`` gets what the browser prints."""
    theirs, commands = os.pipe()
    answers, theirs_too = os.pipe()
    # The protocol wants them to be 3 and 4 there, so here they must be others.
    passed = [fcntl.fcntl(one, fcntl.F_DUPFD, _BEYOND_STANDARD_FILES) for one in (theirs, theirs_too)]
    profile = log.with_suffix(".profile")
    words = [program(), *_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{passed[0]} 4>&{passed[1]}', "bash", *words],
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    for one in (theirs, theirs_too, *passed):
        os.close(one)
    try:
        page = Page(commands, answers)
        page.open(file.as_uri())
        yield page
    finally:
        os.close(commands)  # the browser ends with it
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        os.close(answers)
