"""Maintenance of a table on an object store: the same, and no secret is told."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from deltalake import DeltaTable

from semel.pipeline.lake_address import split_address
from semel.pipeline.live_files import list_files
from semel.pipeline.maintenance_process import Maintenance
from semel.pipeline.table import Table
from tests.pipeline.landing_rows import land_seqs
from tests.pipeline.object_store import KEY, SECRET, Store, running
from tests.pipeline.spark.test_maintenance import POLICY, actions, make_pass

BATCHES = 24


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    pytest.importorskip("moto.server")
    with running() as found:
        found.make_bucket("bucket")
        yield found


def seqs(address: str) -> list[int]:
    uri, storage = split_address(address)
    table = DeltaTable(uri, storage_options=storage).to_pyarrow_table(columns=["seq"])
    return sorted(table["seq"].to_pylist())


def test_a_table_on_an_object_store_is_compacted_and_its_log_cleaned(store: Store) -> None:
    address = store.address("bucket/kept/messages")
    policy = replace(POLICY, log_entries=5, checkpoint_commits=10)
    table = Table(address)
    found = []
    for number in range(BATCHES):
        land_seqs(address, number * 5 + 1, number * 5 + 5, table=table)
        if number % 12 == 11:
            found += make_pass(address, policy=policy, vacuum=True)
    assert {"compacted", "checkpointed", "cleaned log"} <= set(actions(found))
    assert seqs(address) == list(range(1, 5 * BATCHES + 1))
    opened = table.load()
    assert opened is not None
    assert len(list_files(opened)) < POLICY.small_files
    assert table.positions("plant", ["n1"]) == {"n1": 5 * BATCHES}
    assert not [name for name in store.files("bucket/kept") if name.endswith(f"{0:020}.json")]
    land_seqs(address, 5 * BATCHES - 2, 5 * BATCHES + 5, table=table)
    assert seqs(address) == list(range(1, 5 * BATCHES + 6))


def test_a_store_that_does_not_answer_is_one_sentence_without_a_secret(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    address = store.address("bucket/none/messages").replace(store.careful, "127.0.0.1:9")
    Maintenance(address, POLICY, lambda _: None).run_once()
    (record,) = caplog.records
    assert "failed, and will be retried: " in record.getMessage()
    assert KEY not in record.getMessage()
    assert SECRET not in record.getMessage()
