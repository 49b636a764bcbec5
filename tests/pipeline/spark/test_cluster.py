"""`semel land` on a cluster: a master and two workers, as processes, land what two brokers keep."""

import asyncio
import json
import socket
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from semel.client import Client
from tests.broker.broker_process import Process
from tests.pipeline.cluster import PATIENCE, Cluster, can_hide, running
from tests.pipeline.living import until
from tests.pipeline.made import root_of, write_messages

NODES = {"n1": 120, "n2": 70}


def is_sealed(root: Path, node: str, last: int) -> bool:
    return root_of(root).highest_seq("all", node) == last


def record(root: Path, folder: Path) -> None:
    """Two brokers with stores of their own keep under one root what is published to each."""

    async def publish(port: int, messages: int) -> None:
        async with Client(f"mqtt://127.0.0.1:{port}") as client:
            await asyncio.gather(
                *(client.publish("plant/line1", f"{each}", qos=1) for each in range(messages))
            )

    for node, messages in NODES.items():
        where = ("--data", str(folder / node), "--root", str(root), "--node", node)
        sealing = ("--stream", "all=#", "--seal-rows", "30", "--seal-after", "100ms")
        with Process("--host", "127.0.0.1", *where, *sealing) as broker:
            asyncio.run(publish(broker.address[1], messages))
            until(partial(is_sealed, root, node, messages), "the broker does not seal")


def run_landing(
    cluster: Cluster, root: Path, lake: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """`semel land --once`, as a user runs it."""
    where = ("--root", str(root), "--lake", str(lake))
    return subprocess.run(
        [sys.executable, "-P", "-m", "semel", "land", *where, "--once", "--json", *arguments],
        env=cluster.environment(),
        cwd=cluster.folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def land(cluster: Cluster, root: Path, lake: Path, *arguments: str) -> list[dict[str, object]]:
    """Land on a cluster; what it told."""
    done = run_landing(cluster, root, lake, "--master", cluster.master, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
def test_the_workers_of_a_cluster_land_what_two_brokers_keep(tmp_path: Path) -> None:
    root, lake = tmp_path / "root", tmp_path / "lake"
    record(root, tmp_path)
    with running(tmp_path / "cluster") as cluster:
        events = land(cluster, root, lake, "--max-rows", "100")
        # The driver has no cores: what was written, the executors of the workers wrote.
        for place in cluster.places(2):
            (said,) = place.glob("app-*/*/stderr")
            # Nobody on another machine could reach the driver of such a cluster.
            assert "CoarseGrainedScheduler@127.0.0.1:" in said.read_text()
    assert events[-1]["event"] == "ended"
    assert events[-1]["landed"] == sum(NODES.values())
    assert sum(event["event"] == "batch" for event in events) == 2
    table = DeltaTable(str(lake / "messages")).to_pyarrow_table(columns=["node", "seq", "payload"])
    rows = zip(table["node"].to_pylist(), table["seq"].to_pylist(), strict=True)
    assert Counter(rows) == {
        (node, seq): 1 for node, last in NODES.items() for seq in range(1, last + 1)
    }
    payloads = Counter(bytes(each) for each in table["payload"].to_pylist())
    assert payloads == Counter(
        str(each).encode() for last in NODES.values() for each in range(last)
    )


@pytest.mark.long
def test_a_lake_that_workers_do_not_share_is_refused_and_the_rows_land_later(
    tmp_path: Path,
) -> None:
    root, lake = tmp_path / "root", tmp_path / "lake"
    lake.mkdir()
    if not can_hide(lake):
        pytest.skip("mounting is not allowed here: workers cannot have a folder of their own")
    write_messages(root, "all", "n1", 1, 1_000)
    with running(tmp_path / "cluster", workers=1, hidden=lake) as cluster:
        done = run_landing(cluster, root, lake, "--master", cluster.master)
        assert done.returncode == 1
        # Before it is what Spark logs, by the settings of this cluster.
        sentence = done.stderr.splitlines()[-1]
        assert sentence.startswith("Error: ")
        assert "the lake must be on storage that the driver and the workers share" in sentence
        assert f"written on {socket.gethostname()}" in sentence
        assert not (lake / "messages" / "_delta_log").exists()
        # With the same checkpoint, by one machine that needs to share nothing.
        again = run_landing(cluster, root, lake)
    assert again.returncode == 0, again.stdout + again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["landed"] == 1_000
    assert DeltaTable(str(lake / "messages")).count() == 1_000
