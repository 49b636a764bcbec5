"""mqtt.js as tests run it: installed by npm, in Node.js, and on a page in headless Chromium.

Both take *steps*, which steps.mjs describes, and return their results in order.
"""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from tests.broker.broker_process import PATIENCE

SOURCES = Path(__file__).parent
CHROMIUM = next(filter(shutil.which, ("chromium", "google-chrome")), None)
# npm may have to download 44 packages.
INSTALL_TIMEOUT = 180.0

Step = dict[str, Any]
Result = dict[str, Any]


def install(folder: Path) -> Path:
    """Install mqtt.js into the folder, beside the files that use it; skip where this fails."""
    missing = [each for each in ("node", "npm") if shutil.which(each) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    for name in ("package.json", "package-lock.json", "steps.mjs", "node.mjs", "page.html"):
        shutil.copy(SOURCES / name, folder)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, timeout=INSTALL_TIMEOUT
        )
    except (subprocess.SubprocessError, OSError) as problem:
        pytest.skip(f"npm cannot install mqtt.js: {problem}")
    return folder


def run_in_node(folder: Path, steps: Sequence[Step]) -> list[Result]:
    """The results of these steps in one process of Node.js."""
    done = subprocess.run(
        ["node", "node.mjs"],
        cwd=folder,
        input=json.dumps(steps),
        capture_output=True,
        text=True,
        timeout=PATIENCE * max(1, len(steps)),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: list[Result] = json.loads(done.stdout)
    return results


class WebSite:
    """A page with mqtt.js on a port that the system chose, which has two origins.

    A browser takes `origin` and `other_origin` for different sites.
    """

    def __init__(self, folder: Path) -> None:
        self.steps: Sequence[Step] = ()
        self.results: Queue[Result] = Queue()
        self.requests: list[str] = []
        self._files = {
            "/": (folder / "page.html", "text/html"),
            "/steps.mjs": (folder / "steps.mjs", "text/javascript"),
            "/mqtt.min.js": (folder / "node_modules/mqtt/dist/mqtt.min.js", "text/javascript"),
        }
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.requests.append(self.path)
                if self.path == "/steps":
                    self._answer(json.dumps(site.steps).encode(), "application/json")
                elif self.path in site._files:
                    path, kind = site._files[self.path]
                    self._answer(path.read_bytes(), kind)
                else:
                    self.send_error(404)

            def do_POST(self) -> None:
                site.requests.append(self.path)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                site.results.put(json.loads(body))
                self._answer(b"", "text/plain")

            def _answer(self, body: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing: `requests` has it."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://localhost:{self.server.server_port}"
        self.other_origin = f"http://127.0.0.1:{self.server.server_port}"

    @contextmanager
    def serving(self) -> Iterator["WebSite"]:
        thread = threading.Thread(target=self.server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()

    def browse(
        self, origin: str, steps: Sequence[Step], *, profile: Path, trusted_key: str | None = None
    ) -> list[Result]:
        """The results of these steps on the page of that origin, in a Chromium of its own.

        `trusted_key` is the base64 SHA-256 of the only public key that is trusted without a CA.
        """
        assert CHROMIUM is not None
        self.steps = steps
        self.requests.clear()
        command = [
            *(CHROMIUM, "--headless=new", f"--user-data-dir={profile}", "--disable-gpu"),
            *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
            # /dev/shm is small in containers.
            "--disable-dev-shm-usage",
            # As root its sandbox does not start.
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            *([f"--ignore-certificate-errors-spki-list={trusted_key}"] if trusted_key else []),
            f"{origin}/",
        ]
        log = profile.with_suffix(".log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            return [self._next_result(process, log) for _ in steps]
        finally:
            # Its helper processes outlive it for a moment otherwise, and write to the profile.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _next_result(self, process: "subprocess.Popen[bytes]", log: Path) -> Result:
        end = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < end:
            try:
                return self.results.get(timeout=0.5)
            except Empty:
                continue
        state = "runs" if process.poll() is None else f"ended with {process.returncode}"
        tail = log.read_text(errors="replace")[-4_000:]
        pytest.fail(f"no result; Chromium {state}; requests: {self.requests}; its log:\n{tail}")
