"""The page about the client, and the README, say what is true: their examples run."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from semel import Client
from tests.broker.broker_process import Process

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
PATIENCE = 30.0


def blocks(page: str) -> list[str]:
    return BLOCK.findall((ROOT / page).read_text("utf-8"))


class Work:
    """What the examples call `work_on`: notes payloads, and tells when there is one."""

    def __init__(self) -> None:
        self.done: list[bytes] = []
        self.came = asyncio.Event()

    async def work_on(self, payload: bytes) -> None:
        self.done.append(payload)
        self.came.set()


def functions(block: str, url: str, work: Work) -> dict[str, Any]:
    """What a block defines; what it would run, it does not."""
    text = block.replace("mqtt://localhost", url).replace("asyncio.run(main())\n", "")
    names: dict[str, Any] = {"Client": Client, "work_on": work.work_on}
    exec(compile(text, "example", "exec"), names)
    return names


async def until_worked(example: Awaitable[None], work: Work, feed: Callable[[], Any]) -> None:
    """An example that goes on for ever has done what it should."""
    task = asyncio.ensure_future(example)
    async with asyncio.timeout(PATIENCE):
        while not work.came.is_set():
            await feed()
            await asyncio.wait((task,), timeout=0.05)
            if task.done():
                task.result()
                break
    task.cancel()
    await asyncio.wait((task,))


def test_the_first_example_of_the_page_runs_as_it_stands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Process() as broker:
        url = f"mqtt://{broker.address[0]}:{broker.address[1]}"
        text = blocks("docs/program/client.md")[0].replace("mqtt://localhost", url)
        exec(compile(text, "example", "exec"), {})
    assert capsys.readouterr().out == "plant/1/temp 21.5\n"


def test_the_other_examples_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    publishing, receiving, working, stored = blocks("docs/program/client.md")[1:]

    async def main(url: str) -> None:
        work = Work()
        async with Client(url) as client, Client(url) as other:
            seen = await other.subscribe("#", qos=2)
            await functions(publishing, url, work)["example"](client)
            payloads = [(await anext(seen)).payload for _ in range(4)]
            assert payloads == [b"21.5", b"21.5", b"21.5", b"on"]

            async def stop() -> None:
                await other.publish("plant/stop", qos=1)

            await until_worked(functions(receiving, url, work)["example"](client), work, stop)

            async def job() -> None:
                await other.publish("jobs/press-7/a", "job", qos=1)

            await until_worked(functions(working, url, work)["example"](client), work, job)
            assert work.done[0] == b"job"
            work = Work()
            await until_worked(functions(stored, url, work)["example"](), work, job)
            assert work.done[0] == b"job"

    with Process() as broker:
        asyncio.run(main(f"mqtt://{broker.address[0]}:{broker.address[1]}"))
    assert (tmp_path / "press-7.outbox").is_dir()


def test_the_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = (block for block in blocks("README.md") if "outbox=" in block)

    async def main(url: str) -> None:
        work = Work()
        async with Client(url) as other:

            async def job() -> None:
                await other.publish("jobs/press-7/a", "job", qos=2)
                if "job" in capsys.readouterr().out:
                    work.came.set()

            await until_worked(functions(example, url, work)["main"](), work, job)

    with Process() as broker:
        asyncio.run(main(f"mqtt://{broker.address[0]}:{broker.address[1]}"))
