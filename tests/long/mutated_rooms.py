"""The rooms whose sources `make mutants` breaks, and the tests that must notice.

Of semel.mqtt every check is broken. Of the other rooms, which do more than check, the modules in
`everywhere` are broken statement by statement, and one in `sample` of these mutants runs.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Room:
    """One folder of src/semel: what is mutated in it, and with which tests."""

    name: str
    # Globs below the room's tests. These tests run in one process, without sockets or Spark; those
    # of `quick`, which catch most, come before the others.
    quick: tuple[str, ...]
    others: tuple[str, ...]
    # Modules that are mutated in every statement.
    everywhere: frozenset[str]
    # Modules whose constants and tables are facts of the standard.
    tables: frozenset[str] = frozenset()
    # Whether the other modules are mutated where they check; otherwise they are left alone.
    checks_elsewhere: bool = False
    # Whether calls and raises are dropped, too.
    drops_statements: bool = False
    # One in so many mutants runs.
    sample: int = 1
    # Test files that no mutant runs, although a glob or a module's name fits them.
    without: tuple[str, ...] = ()
    # Tests that take longer than all others of their file.
    slow: tuple[str, ...] = ()
    # Whether the tests repeat what is random in full: see tests/modes.py.
    in_full: bool = False

    def test_files(self, project: Path, *globs: str) -> list[Path]:
        """The test files that `globs` find, in their order, and that wait for nothing."""
        found: dict[Path, None] = {}
        for pattern in globs:
            for path in sorted((project / "tests" / self.name).glob(pattern)):
                waits = path.parent.name in ("live", "network", "spark")
                if not waits and not any(fnmatchcase(path.name, name) for name in self.without):
                    found[path] = None
        return list(found)

    def stages(self, project: Path, module: str) -> list[list[Path]]:
        """The tests of a module, which run one stage after the other until one fails.

        First come those named after it, then the room's, and with them those that mention it.
        """
        named = self.test_files(project, f"**/test_{module}.py", f"**/test_{module}_*.py")
        quick = [path for path in self.test_files(project, *self.quick) if path not in named]
        mentioning = [
            path
            for path in self.test_files(project, "**/test_*.py")
            if f"{self.name}.{module} " in path.read_text(encoding="utf-8")
        ]
        others = dict.fromkeys((*mentioning, *self.test_files(project, *self.others)))
        last = [path for path in others if path not in named and path not in quick]
        return [stage for stage in (named, quick, last) if stage]


MQTT: Final = Room(
    "mqtt",
    (),
    ("**/test_*.py",),
    frozenset(
        (
            *("exchange.py", "session.py", "session_restore.py", "session_exchanges.py"),
            *("backlog.py", "trace.py", "side.py", "packet_ids.py", "message.py"),
        )
    ),
    tables=frozenset(
        (
            *("reasons.py", "properties.py", "codec.py", "wire.py", "connect.py", "subscribe.py"),
            *("exchange.py", "session.py", "packet_types.py", "topics.py"),
        )
    ),
    checks_elsewhere=True,
    in_full=True,
)
BROKER: Final = Room(
    "broker",
    (
        *("**/test_core.py", "**/test_store.py", "**/test_limits.py", "**/test_shared*.py"),
        *("**/test_access_core.py", "**/test_snapshot.py", "**/test_statements_*.py"),
    ),
    ("**/test_*.py",),
    frozenset(
        (
            *("core.py", "router.py", "routes.py", "durability.py", "flushing.py"),
            *("lifetimes.py", "withholding.py", "retained.py", "subscriptions.py"),
            *("access_control.py", "revocation.py", "connecting.py", "send_queue.py"),
            *("session_shares.py", "subscription_shares.py", "retained_shares.py", "replay.py"),
            *("cursors.py", "session_state.py"),
        )
    ),
    drops_statements=True,
    sample=18,
    # They test semel.broker.access and the layers of the network.
    without=(
        *("test_access_fuzz.py", "test_access_password*.py", "test_access_rights_*.py"),
        *("test_access_scram.py", "test_access_settings.py", "test_access_tokens.py"),
        *("test_access_verified*.py", "test_addresses.py", "test_audit_*.py", "test_handshakes.py"),
        *("test_layer*.py", "test_listener*.py", "test_log.py", "test_memory.py"),
        *("test_proof_pool.py", "test_proxy_protocol.py", "test_vectors.py"),
    ),
    slow=(
        *("test_topics_of_65_000_levels_need_no_stack", "test_a_tree_of_65_000_levels_is_freed"),
        *("test_retained_messages_take_about_what", "test_what_expired_on_disk_is_forgotten"),
    ),
)
STORE: Final = Room(
    "store",
    (
        *("**/test_row_flags.py", "**/test_roots.py", "**/test_columns.py"),
        *("**/test_segment_checksums.py", "**/test_trimming.py", "**/test_retention.py"),
        *("**/test_record.py", "**/test_database.py"),
    ),
    ("**/test_care.py", "**/test_damage.py"),
    frozenset(
        (
            *("write_batch.py", "row_check.py", "row_checksums.py", "row_flags.py", "sealing.py"),
            *("segments.py", "segment_names.py", "retention.py", "gaps.py", "writer.py"),
        )
    ),
    drops_statements=True,
    sample=9,
    # It takes long.
    without=("test_migration.py",),
    slow=("test_no_reader_sees_a_row_twice_or_misses_one_whatever_happens",),
)
PIPELINE: Final = Room(
    "pipeline",
    (
        *("**/test_checkpoint.py", "**/test_coverage.py", "**/test_offsets.py"),
        *("**/test_resuming.py", "**/test_upserts.py", "**/test_table_loading.py"),
        *("**/test_dead_letters.py", "**/test_same_record.py", "**/test_lake.py"),
    ),
    ("**/test_tables_sink.py", "**/test_delta_log.py", "**/test_compaction.py"),
    frozenset(
        (
            *("coverage.py", "app_transactions.py", "offsets.py", "stream_record.py", "table.py"),
            *("same_record.py", "checkpoint.py"),
        )
    ),
    drops_statements=True,
    sample=5,
    # They take long.
    without=("test_landing*.py", "test_sparkplug*.py", "test_table_retention.py"),
)
ROOMS: Final = (MQTT, BROKER, STORE, PIPELINE)
