"""A real browser without a window: Chromium, driven through its own WebDriver server."""

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any, Self

import httpx

from support.server import PATIENCE

KEYS = {
    "Enter": "\ue007",
    "Escape": "\ue00c",
    "ArrowLeft": "\ue012",
    "ArrowUp": "\ue013",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
}
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # what the standard calls an element's reference


class Browser:
    """One page at a time, in a window of a size that is said.

    Attributes:
        http: Speaks to the driver, within the session.
    """

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def _post(self, path: str, **body: Any) -> Any:
        answer = self.http.post(path, json=body).json()["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{path}: {answer['error']}: {answer['message']}")
        return answer

    def open(self, path: Path, fragment: str = "") -> Self:
        """Opens a file anew and waits until the page has shown something."""
        self._post("url", url="about:blank")
        self._post("url", url=path.resolve().as_uri() + fragment)
        self.wait("!document.querySelector('#reader').textContent.startsWith('Loading')")
        return self

    def visit(self, url: str) -> None:
        """Opens an address."""
        self._post("url", url=url)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a piece of JavaScript returns."""
        return self._post("execute/sync", script=script, args=list(arguments))

    def wait(self, condition: str) -> None:
        """Waits until an expression is true, looking each time the page is drawn."""
        script = (
            f"const done = arguments[0], look = () => ({condition}) ? done(true) : requestAnimationFrame(look); look()"
        )
        self._post("execute/async", script=script, args=[])

    def text(self, selector: str) -> str:
        """The text of the first element."""
        return self.run("return document.querySelector(arguments[0]).innerText", selector)

    def texts(self, selector: str) -> list[str]:
        """The text of all of them."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector)

    def colour(self, selector: str, of: str = "backgroundColor") -> str:
        """A colour as it is shown."""
        return self.run("return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]", selector, of)

    def click(self, selector: str) -> None:
        """Clicks where an element is, as people do."""
        self._post(f"element/{self._find(selector)}/click")

    def write(self, selector: str, text: str) -> None:
        """Types into a field, in place of what is in it."""
        element = self._find(selector)
        self._post(f"element/{element}/clear")
        self._post(f"element/{element}/value", text=text)

    def press(self, *keys: str) -> None:
        """Presses keys one after the other."""
        actions = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self._post("actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def hover(self, selector: str) -> None:
        """Moves the pointer onto an element."""
        origin = {ELEMENT: self._find(selector)}
        move = {"type": "pointerMove", "origin": origin, "x": 0, "y": 0, "duration": 0}
        self._post("actions", actions=[{"type": "pointer", "id": "mouse", "actions": [move]}])

    def show(self, *, dark: bool = False, width: int = 1280, height: int = 800, phone: bool = False) -> None:
        """Chooses the system's theme and the size of the window."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._command("Emulation.setEmulatedMedia", features=[feature])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self._command("Emulation.setDeviceMetricsOverride", **size)

    def picture(self, path: str | Path) -> None:
        """Writes what is seen as a PNG."""
        Path(path).write_bytes(base64.b64decode(self.http.get("screenshot").json()["value"]))

    def complaints(self) -> list[str]:
        """What the browser's console has said since this was last asked."""
        return [entry["message"] for entry in self._post("se/log", type="browser")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since this was last asked."""
        entries = [json.loads(entry["message"])["message"] for entry in self._post("se/log", type="performance")]
        return [one["params"]["request"]["url"] for one in entries if one["method"] == "Network.requestWillBeSent"]

    def _find(self, selector: str) -> str:
        return self._post("element", using="css selector", value=selector)[ELEMENT]

    def _command(self, name: str, **parameters: Any) -> None:
        self._post("goog/cdp/execute", cmd=name, params=parameters)


@contextlib.contextmanager
def chromium(folder: Path) -> Generator[Browser]:
    """A browser that keeps what it keeps in a folder, and that is gone at the end with all its processes."""
    driver, binary = shutil.which("chromedriver"), shutil.which("chromium")
    assert driver, "these tests need a browser: apt-get install chromium chromium-driver"
    assert binary, "these tests need a browser: apt-get install chromium"
    process = subprocess.Popen(
        [driver, "--port=0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env=os.environ | {"HOME": str(folder), "TMPDIR": str(folder)},
    )
    try:
        assert process.stdout is not None
        port = next(match[1] for said in process.stdout if (match := re.search(r"successfully on port (\d+)", said)))
        options = {
            "binary": binary,
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"],
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "timeouts": {"script": 20_000, "pageLoad": 30_000, "implicit": 0},
        }
        base = f"http://127.0.0.1:{port}"
        answer = httpx.post(
            f"{base}/session", json={"capabilities": {"alwaysMatch": wanted}}, timeout=PATIENCE, trust_env=False
        ).json()["value"]
        assert "sessionId" in answer, f"the browser did not start: {answer.get('message')}"
        base_url = f"{base}/session/{answer['sessionId']}/"
        with httpx.Client(base_url=base_url, timeout=PATIENCE, trust_env=False) as http:
            yield Browser(http)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)
        if process.stdout is not None:
            process.stdout.close()
