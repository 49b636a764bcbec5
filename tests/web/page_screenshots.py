"""Takes the pictures of the page in docs/images.

    python -m tests.web.page_screenshots [--fake] [--seconds 310] [--folder docs/images]

Of a real `semel up` with a simulated fleet, subscribers, and a client that breaks a rule; it runs
for five minutes first, so that the charts are full. With --fake, or if `semel up` does not start,
of the tests' fake server. Text has the fonts of this machine.
"""

import argparse
import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.web.page_browser import Page, Visits, launched
from tests.web.page_server import PageStandIn

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
# Spark takes a while to start, longer on a busy machine.
START_SECONDS = 180
# CONNECT of press-07, MQTT 5.0, clean start; then a PUBLISH to plant/+/temp.
BREAKS_A_RULE = bytes.fromhex(
    "1015 0004 4d515454 05 02 003c 00 0008 70726573732d3037"
    "3013 000c 706c616e742f2b2f74656d70 00 32312e35"
)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of semel, until Ctrl-C."""
    command = [sys.executable, "-m", "semel", *arguments]
    with (folder / f"{arguments[0]}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def is_serving(url: str, log: Path, process: subprocess.Popen[bytes]) -> bool:
    """Whether the page is served and messages land, within START_SECONDS."""
    for _ in range(START_SECONDS):
        if process.poll() is not None:
            return False
        with contextlib.suppress(OSError), urlopen(f"{url}api/session", timeout=2):
            if b"ready: landing" in log.read_bytes():
                return True
        time.sleep(1)
    return False


@contextmanager
def real_page(seconds: float) -> Iterator[str | None]:
    """The address of the page of a busy `semel up`, or None if it does not start."""
    port, web_port = free_port(), free_port()
    url = f"http://127.0.0.1:{web_port}/"
    given = ("--port", str(port), "--web-port", str(web_port))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        up = stack.enter_context(running(folder, "up", *given))
        if not is_serving(url, folder / "up.log", up):
            print((folder / "up.log").read_text("utf-8", "replace"), file=sys.stderr)
            yield None
            return
        fleet = ("--rate", "250", "--devices", "400", "--gateways", "40", "--payload", "json")
        stack.enter_context(running(folder, "fleet", "-p", str(port), *fleet))
        for topic_filter in ("plant/#", "plant/+/+/+/temperature"):
            stack.enter_context(running(folder, "sub", "-p", str(port), "-t", topic_filter))
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(BREAKS_A_RULE)
            client.recv(100)
        time.sleep(seconds)
        yield url


@contextmanager
def fake_page() -> Iterator[str]:
    server = PageStandIn(hostile=False).start()
    yield server.url
    server.stop()


def shoot_now(page: Page) -> None:
    page.wait_for_timeout(2_500)


def shoot_topics(page: Page) -> None:
    page.get_by_label("Search topics").fill("temp")
    page.get_by_role("row", name="temp").nth(4).click()
    page.wait_for_timeout(500)
    page.get_by_label("Search topics").fill("")
    # From its address it is opened in the tree.
    page.reload()
    page.wait_for_timeout(3_500)


QUERY = """select split_part(topic, '/', 5) as sensor, count(*) as messages
from messages_now
group by sensor
order by messages desc"""


def shoot_tables(page: Page) -> None:
    page.get_by_role("textbox", name="Query").fill(QUERY)
    page.get_by_role("button", name="Run").click()
    page.locator(".bar-chart").wait_for(timeout=60_000)
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)


def shoot(visits: Visits, folder: Path) -> None:
    """All pictures."""
    pictures = (
        ("now-light", "#/now", "light", shoot_now),
        ("now-dark", "#/now", "dark", shoot_now),
        ("topics-light", "#/topics", "light", shoot_topics),
        ("tables-dark", "#/tables", "dark", shoot_tables),
    )
    for name, route, scheme, prepare in pictures:
        size = {"width": 1360, "height": 850, "scale": 1.5}
        page = visits(route, scheme=scheme, motion="no-preference", **size)
        prepare(page)
        page.screenshot(path=folder / f"{name}.png")
        print(folder / f"{name}.png")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fake", action="store_true", help="use the tests' fake server")
    parser.add_argument("--seconds", type=float, default=310, help="how long semel up runs first")
    parser.add_argument("--folder", type=Path, default=IMAGES)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        url = None if given.fake else stack.enter_context(real_page(given.seconds))
        if url is None and not given.fake:
            print("semel up does not start here: these are pictures of the fake server")
        visits = stack.enter_context(launched())
        visits.url = url or stack.enter_context(fake_page())
        shoot(visits, given.folder)
        visits.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
