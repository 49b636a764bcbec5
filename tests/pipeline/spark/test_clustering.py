"""A process that sorts rows, killed."""

import os
import subprocess
import sys
from pathlib import Path

from deltalake import DeltaTable

from semel.pipeline import clustering
from tests.pipeline.core.test_clustering import clustered, merge_all


def test_a_kill_while_rows_are_sorted_leaves_the_table_and_no_temporary_file(
    tmp_path: Path,
) -> None:
    place = tmp_path / "t"
    clustered(place, "text")
    code = """
import os, sys
from deltalake import DeltaTable
from semel.pipeline import clustering, compaction
from semel.pipeline.live_files import list_files

really = clustering._merged_pieces
def end(*arguments):
    for piece in really(*arguments):
        os._exit(9)
clustering._merged_pieces = end
table = DeltaTable(sys.argv[1])
limits = compaction.MergeLimits(group_bytes=4_000, read_bytes=2_000)
groups = compaction.plan_all(list_files(table), 2**30)
compaction.compact(sys.argv[1], table, groups, limits=limits)
"""
    files = set(place.rglob("*.parquet"))
    before = DeltaTable(place).version()
    done = subprocess.run(
        [sys.executable, "-c", code, str(place)],
        env={**os.environ, "PYTHONPATH": str(Path(clustering.__file__).parents[2])},
        capture_output=True,
    )
    assert done.returncode == 9, done.stderr.decode()
    # The merged file had begun, which no commit names.
    (orphan,) = (
        {path for path in place.rglob("*") if path.is_file()}
        - files
        - {*(place / "_delta_log").iterdir()}
    )
    assert orphan.suffix == ".parquet"
    assert DeltaTable(place).version() == before
    assert merge_all(place).rows == 200
