"""A store on a disk beside a loop: what its owner is told, and when."""

import asyncio
from pathlib import Path

from semel.mqtt import Message
from semel.store.commit import Commit
from semel.store.opening import open_store
from semel.store.settings import StoreSettings
from semel.store.statistics import StoreStatistics
from semel.store.store import BEHIND, OPEN

# Longer than any transaction here takes, on a machine that is busy.
SECONDS = 60.0


def large() -> Commit:
    commit = Commit()
    commit.retained.append(("t", Message("t", bytes(10_000), retain=True)))
    return commit


def test_the_owner_is_told_when_the_store_gets_behind_and_when_it_has_caught_up(
    tmp_path: Path,
) -> None:
    told: list[int] = []

    async def fall_behind() -> None:
        loop = asyncio.get_running_loop()
        safe = asyncio.Event()
        store = opened.store
        store.connect(
            loop,
            safe=lambda commits: safe.set(),
            changed=lambda: told.append(store.condition),
            failed=lambda why: None,
        )
        store.write(Commit())
        assert told == []
        store.write(large())
        # Nothing of it is written before the loop has its turn again.
        assert told == [BEHIND]
        await asyncio.wait_for(safe.wait(), SECONDS)
        while store.condition != OPEN:
            await asyncio.sleep(0.01)

    opened = open_store(StoreSettings(data=tmp_path / "data", maximum_unwritten_bytes=5_000), [])
    try:
        asyncio.run(fall_behind())
    finally:
        opened.close()
    assert told == [BEHIND, OPEN]


def test_what_is_safe_is_told_whatever_else_the_owner_cannot_be_told(tmp_path: Path) -> None:
    """Somebody waits for it."""
    problems: list[str] = []

    async def fall_behind() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(str(context["exception"])))
        safe = asyncio.Event()
        store = opened.store

        def changed() -> None:
            if store.condition == OPEN:
                raise RuntimeError("a mistake")

        store.connect(
            loop, safe=lambda commits: safe.set(), changed=changed, failed=lambda why: None
        )
        store.write(large())
        await asyncio.wait_for(safe.wait(), SECONDS)

    opened = open_store(StoreSettings(data=tmp_path / "data", maximum_unwritten_bytes=5_000), [])
    try:
        asyncio.run(fall_behind())
    finally:
        opened.close()
    assert problems == ["a mistake"]


def test_the_store_counts_its_commits_and_what_is_not_written(tmp_path: Path) -> None:
    found: list[StoreStatistics | None] = []

    async def write() -> None:
        store = opened.store
        found.append(store.statistics())
        safe = asyncio.Event()
        store.connect(
            asyncio.get_running_loop(),
            safe=lambda commits: safe.set(),
            changed=lambda: None,
            failed=lambda why: None,
        )
        store.write(large())
        found.append(store.statistics())
        await asyncio.wait_for(safe.wait(), SECONDS)
        found.append(store.statistics())

    opened = open_store(StoreSettings(data=tmp_path / "data"), [])
    try:
        asyncio.run(write())
    finally:
        opened.close()
    before, during, after = found
    assert before is None
    assert during is not None
    assert after is not None
    assert (during.commit_seconds.total, after.commit_seconds.total) == (0, 1)
    assert during.unwritten_bytes > 10_000
    assert after.unwritten_bytes == 0
    assert after.transaction_commits.total == 1
    # A retained message is neither a record nor a change of a session.
    assert after.transaction_rows.sum == 0
    assert (after.streams, after.unsealed_bytes, after.is_sealer_running) == ((), 0, None)
