"""The page as a process: of `semel up`, of `semel broker --web`, and alone."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from semel.extras import EXTRAS
from semel.processes import descendants, list_processes
from semel.up.status_file import STATUS_FILE, read_status, remove_status, write_status

PATIENCE = 90.0
URL = re.compile(r"the page is at (http://127\.0\.0\.1:\d+/)")


@contextmanager
def started(folder: Path, *arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A command of semel, whose output goes to the file `log`."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "semel", *arguments],
            cwd=folder,
            stdout=log,
            stderr=log,
            text=True,
            env={**os.environ, "SEMEL_WEB_ENABLED": "true", "SEMEL_WEB_PORT": "0", **environ},
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def wait_for(found: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (result := found()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
    return result


def page_url(folder: Path) -> str:
    def find() -> str | None:
        found = URL.search((folder / "log").read_text())
        return found[1] if found else None

    url: str = wait_for(find, "the page")
    return url


def read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return json.load(answer)


def test_a_broker_serves_the_page_and_both_end_together(tmp_path: Path) -> None:
    arguments = ("broker", "--port", "0", "--data", "data", "--stream", "all=#", "--web")
    with started(tmp_path, *arguments) as broker:
        url = page_url(tmp_path)
        assert read(f"{url}api/session")["role"] == "admin"
        below = descendants([broker.pid], list_processes())
        assert below
        broker.kill()
        wait_for(lambda: not any(Path(f"/proc/{each}").exists() for each in below), "its end")
        with pytest.raises(OSError, match="refused"):
            read(f"{url}api/session")


def test_a_page_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with started(tmp_path, "broker", "--port", "0", "--data", "data", "--web") as broker:
        page_url(tmp_path)
        for each in descendants([broker.pid], list_processes()):
            if b"\0web\0" in Path(f"/proc/{each}/cmdline").read_bytes():
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
        log = tmp_path / "log"
        wait_for(lambda: len(URL.findall(log.read_text())) == 2, "the second page")
        assert "the page has ended: " in log.read_text()


# Python imports it at its start: packages that are named in HIDDEN cannot be found.
HIDING = """
import os, sys
from importlib.machinery import PathFinder

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in os.environ["HIDDEN"].split():
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path = [Finder if each is PathFinder else each for each in sys.meta_path]
"""


def hiding(folder: Path, *kept: str) -> dict[str, str]:
    """Environment variables for a Python that has these extras and no other."""
    (folder / "sitecustomize.py").write_text(HIDING)
    wanted = {module for extra in kept for module in EXTRAS[extra]}
    hidden = {module for modules in EXTRAS.values() for module in modules} - wanted
    inherited = os.environ.get("PYTHONPATH")
    path = f"{folder}{os.pathsep}{inherited}" if inherited else str(folder)
    return {"PYTHONPATH": path, "HIDDEN": " ".join(sorted(hidden))}


def test_a_page_with_the_extra_web_alone_says_what_it_lacks(tmp_path: Path) -> None:
    arguments = ("broker", "--port", "0", "--data", "data", "--web")
    with started(tmp_path, *arguments, **hiding(tmp_path, "web")):
        url = page_url(tmp_path)
        request = urllib.request.Request(f"{url}api/tables")
        with urllib.request.urlopen(f"{url}api/session", timeout=PATIENCE) as answer:
            session = json.load(answer)
            request.add_header("Cookie", answer.headers["Set-Cookie"].partition(";")[0])
        assert session["without_record"] == (
            "topics of the record need pyarrow: pip install 'semel[sql]'"
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=PATIENCE)
        with refused.value as answer:
            assert json.load(answer) == {
                "error": "tables need deltalake, duckdb, pyarrow: pip install 'semel[sql]'"
            }


def test_a_page_without_its_extra_is_a_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "semel", "web"],
        cwd=tmp_path,
        env={**os.environ, **hiding(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert done.stderr == "Error: semel web needs starlette: pip install 'semel[web]'\n"


def test_a_port_that_is_taken_is_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "semel", "web", "--port", str(port)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: the page cannot be served at 127.0.0.1, port {port}: Address already in use; set"
        " [web] port, or leave the page out\n"
    )


def test_a_broker_without_data_has_no_page(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "semel", "broker", "--web"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    assert "--web needs --data" in done.stderr


def test_semel_up_serves_the_page_and_writes_its_status(tmp_path: Path) -> None:
    arguments = ("up", "--port", "0", "--no-land", "--json")
    with started(tmp_path, *arguments) as up:
        url = page_url(tmp_path)
        status = wait_for(lambda: read_status(tmp_path / "semel-data"), "the status")
        assert set(status["parts"]) == {"broker", "page"}
        assert (status["lands"], status["recorded"]) == (False, 0)
        assert read(f"{url}api/session")["has_record"] is True
        up.send_signal(signal.SIGTERM)
        assert up.wait(PATIENCE) == 0
    assert not (tmp_path / "semel-data" / STATUS_FILE).exists()


def test_semel_up_can_leave_the_page_out(tmp_path: Path) -> None:
    with started(tmp_path, "up", "--port", "0", "--no-land", "--no-web", "--json"):
        status = wait_for(lambda: read_status(tmp_path / "semel-data"), "the status")
        assert set(status["parts"]) == {"broker"}


# --- the status file ------------------------------------------------------------------------------


def test_a_status_is_read_while_it_is_current(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    write_status(tmp_path, {"recorded": 5})
    assert read_status(tmp_path) == {"recorded": 5}
    old = time.time() - 60
    os.utime(tmp_path / STATUS_FILE, (old, old))
    assert read_status(tmp_path) is None
    (tmp_path / STATUS_FILE).write_text("{")
    assert read_status(tmp_path) is None
    remove_status(tmp_path)
    remove_status(tmp_path)
    # A disk that is full, or a folder that has gone, stops nothing.
    write_status(tmp_path / "nothing", {})
