"""SQL queries of the page: bounded in time, memory and number."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from semel.store.sealing import environment_for_python

# Queries that wait for the one that runs; a further one is refused.
WAITING_QUERIES: Final = 4
QUERY_CHARACTERS: Final = 100_000
# The longest answer of the worker, in bytes: its rows have at most 4,000,000 characters.
ANSWER_BYTES: Final = 64 * 1024 * 1024
# An export may take longer than a query whose result is shown.
EXPORT_FACTOR: Final = 10

Values = dict[str, Any]


class QueryRefused(Exception):
    """Why a query has no result, in a sentence."""


class TooManyQueries(QueryRefused):
    """Other queries have to end first."""


@dataclass(frozen=True)
class LakeAddress:
    """The lake to query, and the record beside it. Paths are absolute."""

    lake: str
    root: str | None
    data: Path | None
    stream: str
    table: str


class SqlQueries:
    """Runs queries in a worker process, which is started when it is needed."""

    def __init__(self, address: LakeAddress, *, seconds: float, memory: str) -> None:
        self._address = address
        self._seconds = seconds
        self._memory = memory
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._worker: asyncio.subprocess.Process | None = None

    async def run(self, query: str) -> Values:
        """The result of a query. Raises QueryRefused."""
        if len(query) > QUERY_CHARACTERS:
            raise QueryRefused(f"the query has more than {QUERY_CHARACTERS:,} characters")
        began = time.monotonic()
        async with self._next_turn():
            found = await self._ask({"query": query})
        return {**found, "seconds": round(time.monotonic() - began, 3)}

    async def names(self) -> Values:
        """The tables and views that can be queried, with their columns. Raises QueryRefused."""
        async with self._next_turn():
            return await self._ask({})

    @asynccontextmanager
    async def _next_turn(self) -> AsyncIterator[None]:
        if self._waiting > WAITING_QUERIES:
            raise TooManyQueries("other queries are running: try again when they have ended")
        self._waiting += 1
        try:
            async with self._turn:
                yield
        finally:
            self._waiting -= 1

    async def _ask(self, request: Values) -> Values:
        address = self._address
        line = json.dumps(
            {
                "lake": address.lake,
                "root": address.root,
                "data": None if address.data is None else str(address.data),
                "stream": address.stream,
                "table": address.table,
                "memory": self._memory,
                **request,
            }
        )
        try:
            async with asyncio.timeout(self._seconds):
                worker = await self._started()
                assert worker.stdin is not None
                assert worker.stdout is not None
                worker.stdin.write(line.encode() + b"\n")
                await worker.stdin.drain()
                answer = await worker.stdout.readline()
        except TimeoutError:
            await self.close()
            raise QueryRefused(
                f"the query was ended after {self._seconds:g} seconds: [web] query_seconds is the "
                "limit"
            ) from None
        except BaseException:
            # The answer would be taken for that of the next query.
            await self.close()
            raise
        if not answer:
            await self.close()
            raise QueryRefused(
                "the query ended its process, probably for lack of memory: ask for less"
            )
        found: Values = json.loads(answer)
        if "error" in found:
            raise QueryRefused(str(found["error"]))
        return found

    async def _started(self) -> asyncio.subprocess.Process:
        if self._worker is None or self._worker.returncode is not None:
            self._worker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "semel.web.sql_worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment_for_python(os.environ),
                limit=ANSWER_BYTES,
            )
        return self._worker

    async def close(self) -> None:
        """End the worker."""
        worker, self._worker = self._worker, None
        if worker is not None and worker.returncode is None:
            with suppress(ProcessLookupError):
                worker.kill()
            await worker.wait()

    @asynccontextmanager
    async def export(self, query: str, form: str) -> AsyncIterator[Path]:
        """A file with the whole result as CSV or Parquet; it is deleted at the end.

        `semel sql` writes it, with the same limits. Raises QueryRefused.
        """
        folder = Path(tempfile.mkdtemp(prefix="semel-export-"))
        statement = query.strip().rstrip(";")
        copy = f"COPY ({statement}\n) TO 'result.{form}'"
        address = self._address
        command = [sys.executable, "-P", "-m", "semel", "sql", "--memory", self._memory]
        for flag, value in (("--root", address.root), ("--data", address.data)):
            if value is not None:
                command += [flag, str(value)]
        command += ["--lake", address.lake, "--", copy]
        try:
            async with self._next_turn():
                await self._export(command, folder)
            yield folder / f"result.{form}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _export(self, command: list[str], folder: Path) -> None:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={
                **environment_for_python(os.environ),
                "SEMEL_LAND_STREAM": self._address.stream,
                "SEMEL_LAND_TABLE": self._address.table,
            },
        )
        try:
            async with asyncio.timeout(self._seconds * EXPORT_FACTOR):
                _, problem = await process.communicate()
        except BaseException as ended:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if isinstance(ended, TimeoutError):
                limit = self._seconds * EXPORT_FACTOR
                raise QueryRefused(f"the export was ended after {limit:g} seconds") from None
            raise
        if process.returncode:
            text = problem.decode("utf-8", "replace").strip().removeprefix("Error: ")
            raise QueryRefused(text or "the export failed")
