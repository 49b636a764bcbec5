"""Roots: a folder and an object store keep the same promises, each in its way."""

import fcntl
import json
import os
import stat
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.extras import need
from semel.store.roots import (
    LocalRoot,
    NotOwned,
    ObjectRoot,
    Root,
    RootEntry,
    RootError,
    check_folder_name,
    open_root,
    without_secrets,
)
from semel.store.segment_names import segment_name
from tests.store.memory_root import MemoryRoot, ObjectStore, object_root
from tests.store.wrong_secrets import WRONG_SECRETS

pa = need("pyarrow", extra="broker", by="this test")
fs = need("pyarrow.fs", extra="broker", by="this test")


def text(data: bytes) -> Callable[[Any], None]:
    """What writes these bytes."""

    def fill(sink: Any) -> None:
        sink.write(data)

    return fill


def content(root: Root, path: str) -> bytes:
    with root.read(path) as file:
        return bytes(file.read())


@pytest.fixture(params=["local", "object store", "subtree", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    if request.param == "local":
        return LocalRoot(tmp_path / "streams")
    if request.param == "object store":
        return object_root(ObjectStore())
    if request.param == "memory":
        return MemoryRoot()
    # pyarrow's own file system, as another that has folders.
    for stream, node in (("plant", "n1"), ("plant", "n2"), ("all", "n1")):
        (tmp_path / "bucket" / stream / node).mkdir(parents=True)
    subtree = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    return ObjectRoot(subtree, "bucket", "subtree://bucket")


# --- all roots ------------------------------------------------------------------------------------


def test_what_is_written_is_read(root: Root) -> None:
    assert root.write("plant/n1/a", text(b"one")) == 3
    assert content(root, "plant/n1/a") == b"one"
    assert [(each.name, each.size) for each in root.entries("plant/n1")] == [("a", 3)]


def test_writing_again_replaces(root: Root) -> None:
    root.write("plant/n1/a", text(b"one"))
    root.write("plant/n1/a", text(b"second"))
    assert content(root, "plant/n1/a") == b"second"
    assert len(root.entries("plant/n1")) == 1


def test_a_fresh_file_replaces_nothing(root: Root) -> None:
    root.write("plant/n1/a", text(b"one"), exclusive=True)
    with pytest.raises(FileExistsError):
        root.write("plant/n1/a", text(b"two"), exclusive=True)
    assert content(root, "plant/n1/a") == b"one"
    assert [each.name for each in root.entries("plant/n1")] == ["a"]


@pytest.mark.parametrize("before", [None, b"old"])
def test_a_write_that_fails_changes_nothing(root: Root, before: bytes | None) -> None:
    if before is not None:
        root.write("plant/n1/a", text(before))

    def fail(sink: Any) -> None:
        sink.write(b"half of")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        root.write("plant/n1/a", fail)
    if before is None:
        assert root.entries("plant/n1") == []
    else:
        assert content(root, "plant/n1/a") == before
        assert len(root.entries("plant/n1")) == 1


def test_a_file_that_is_not_there_is_not_found_and_deleted_without_complaint(root: Root) -> None:
    with pytest.raises(FileNotFoundError):
        root.read("plant/n1/none")
    root.delete("plant/n1/none")
    root.write("plant/n1/a", text(b"one"))
    root.delete("plant/n1/a")
    with pytest.raises(FileNotFoundError):
        root.read("plant/n1/a")
    assert root.entries("plant/n1") == []


def test_what_is_there_can_be_settled_and_cleaned(root: Root) -> None:
    root.write("plant/n1/a", text(b"one"))
    root.fsync("plant/n1/a")
    root.delete_temporary("plant/n1")
    assert content(root, "plant/n1/a") == b"one"


def test_a_folder_that_is_not_there_is_empty(root: Root) -> None:
    assert root.entries("nothing/here") == []
    assert root.segments("nothing", "here") == []
    assert root.highest_seq("nothing", "here") == 0


def test_all_nodes_of_a_stream_are_listed_at_once_as_they_are_one_by_one(root: Root) -> None:
    for path in ("plant/n1/a", "plant/n1/_b", "plant/n2/c", "plant/f", "all/n1/i"):
        root.write(path, text(b"xyz"))

    def by_name(entries: list[RootEntry]) -> list[RootEntry]:
        return sorted(entries, key=lambda each: each.name)

    found = root.entries_by_node("plant")
    assert list(found) == root.nodes("plant") == ["n1", "n2"]
    assert [each.name for each in by_name(found["n1"])] == ["_b", "a"]
    for node, entries in found.items():
        assert by_name(entries) == by_name(root.entries(f"plant/{node}"))
    assert root.entries_by_node("nothing") == {}
    with pytest.raises(RootError, match="cannot name a folder"):
        root.entries_by_node("../plant")


def test_what_is_no_node_and_what_is_deeper_is_not_listed() -> None:
    root = object_root(ObjectStore())
    for path in ("n1/a", "n1/deeper/b", "n1/deeper/still/c", "_no/d", ".no/e", "n2/f"):
        root.write(f"plant/{path}", text(b"x"))
    root.write("planting/n3/h", text(b"x"))
    found = root.entries_by_node("plant")
    assert {node: [each.name for each in found[node]] for node in found} == {
        "n1": ["a"],
        "n2": ["f"],
    }


def test_all_nodes_of_a_stream_take_one_request_of_an_object_store() -> None:
    store = ObjectStore()
    root = object_root(store)
    for number in range(5):
        root.write(f"plant/n{number}/a", text(b"x"))
    asked: list[str] = []
    store.trouble = lambda what, path: asked.append(what)
    assert len(root.entries_by_node("plant")) == 5
    assert asked == ["list"]


def test_streams_and_nodes_are_the_folders(root: Root) -> None:
    for path in ("plant/n2/a", "plant/n1/a", "all/n1/a"):
        root.write(path, text(b"x"))
    assert root.streams() == ["all", "plant"]
    assert root.nodes("plant") == ["n1", "n2"]
    assert root.nodes("none") == []


def test_only_segments_are_segments(root: Root) -> None:
    for name in (
        segment_name(11, 20),
        segment_name(1, 10),
        segment_name(1, 20),
        f".tmp-1-{segment_name(21, 30)}",
        f"_{segment_name(21, 30)}",
        "21-30.parquet",
        "notes.txt",
    ):
        root.write(f"plant/n1/{name}", text(b"x"))
    assert [each.range for each in root.segments("plant", "n1")] == [(1, 10), (1, 20), (11, 20)]
    assert root.highest_seq("plant", "n1") == 20


def test_the_highest_seq_outlives_the_segments(root: Root) -> None:
    root.write(f"plant/n1/{segment_name(1, 10)}", text(b"x"))
    root.set_trimmed("plant", "n1", 10)
    root.delete(f"plant/n1/{segment_name(1, 10)}")
    assert root.segments("plant", "n1") == []
    assert root.trimmed("plant", "n1") == 10
    assert root.highest_seq("plant", "n1") == 10
    assert root.highest_seq("plant", "n2") == 0


def test_what_is_trimmed_never_goes_back(root: Root) -> None:
    root.set_trimmed("plant", "n1", 10)
    root.set_trimmed("plant", "n1", 30)
    root.set_trimmed("plant", "n1", 20)
    assert root.trimmed("plant", "n1") == 30
    assert [each.name for each in root.entries("plant/n1")] == [f"_trimmed-{30:020}.json"]


def test_two_who_trim_at_once_leave_the_higher_number() -> None:
    root = MemoryRoot()
    other = MemoryRoot()
    other.files = root.files

    def intrude(what: str, path: str) -> None:
        if what == "write":
            root.hook = lambda what, path: None
            other.set_trimmed("plant", "n1", 30)

    root.hook = intrude
    root.set_trimmed("plant", "n1", 20)
    assert root.trimmed("plant", "n1") == 30


# --- whose folder it is ---------------------------------------------------------------------------


def test_the_owner_may_claim_again_and_another_may_not(root: Root) -> None:
    assert root.owner("plant", "n1") is None
    root.claim("plant", "n1", "store-a")
    root.claim("plant", "n1", "store-a")
    assert root.owner("plant", "n1") == "store-a"
    with pytest.raises(
        NotOwned, match="node n1 belongs to store store-a, not to store-b"
    ) as caught:
        root.claim("plant", "n1", "store-b")
    assert "--node" in str(caught.value)
    assert root.owner("plant", "n1") == "store-a"
    root.claim("plant", "n2", "store-b")
    root.claim("all", "n1", "store-b")


def test_segments_without_an_owner_are_not_claimed(root: Root) -> None:
    root.write(f"plant/n1/{segment_name(1, 10)}", text(b"x"))
    with pytest.raises(NotOwned, match="no recorded owner"):
        root.claim("plant", "n1", "store-a")
    assert root.owner("plant", "n1") is None


def test_a_folder_is_adopted_when_that_is_wanted(root: Root) -> None:
    root.write(f"plant/n1/{segment_name(1, 10)}", text(b"x"))
    root.claim("plant", "n1", "store-a", adopt=True)
    root.claim("plant", "n1", "store-b", adopt=True)
    assert root.owner("plant", "n1") == "store-b"


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b'{"store": 3}', b"{}", b"\xff"])
def test_a_damaged_note_is_named_and_claimed_by_nobody(root: Root, note: bytes) -> None:
    root.write("plant/n1/_owner.json", text(note or b" "))
    with pytest.raises(RootError, match=r"plant/n1/_owner\.json is damaged"):
        root.claim("plant", "n1", "store-a")


def test_of_many_who_claim_a_folder_at_once_one_gets_it(tmp_path: Path) -> None:
    for attempt in range(20):
        got: list[str] = []
        barrier = threading.Barrier(4)

        def claim(
            store: str, place: Path, barrier: threading.Barrier = barrier, got: list[str] = got
        ) -> None:
            root = LocalRoot(place)
            barrier.wait()
            try:
                root.claim("plant", "n1", store)
            except NotOwned:
                return
            got.append(store)

        threads = [
            threading.Thread(target=claim, args=(f"store-{number}", tmp_path / str(attempt)))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [LocalRoot(tmp_path / str(attempt)).owner("plant", "n1")]


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "_x", "a/b", "/a", "a\\b", "a\0"])
def test_a_name_that_is_no_folder_is_refused(root: Root, name: str) -> None:
    with pytest.raises(RootError, match="cannot name a folder"):
        root.file_path(name, "n1", "x")
    with pytest.raises(RootError, match="cannot name a folder"):
        root.segments("plant", name)


@pytest.mark.parametrize("name", ["plant", "a b", "ä", "a.b", "a_b", "2025", "-"])
def test_other_names_are_folders(name: str) -> None:
    check_folder_name("stream", name)
    root = MemoryRoot()
    root.claim(name, name, "s")
    assert root.streams() == [name]


# --- a folder -------------------------------------------------------------------------------------


def test_files_and_folders_are_for_the_owner_only(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        root = LocalRoot(tmp_path / "deep" / "streams")
        root.write("plant/n1/a", text(b"x"))
        root.claim("plant", "n1", "store-a")
    finally:
        os.umask(old)
    for path in (tmp_path / "deep").rglob("*"):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "streams" / "plant").mkdir(parents=True)
    (tmp_path / "streams" / "plant").chmod(0o750)
    LocalRoot(tmp_path / "streams").write("plant/n1/a", text(b"x"))
    assert stat.S_IMODE((tmp_path / "streams" / "plant").stat().st_mode) == 0o750


def test_what_a_killed_writer_left_is_cleaned_up(tmp_path: Path) -> None:
    root = LocalRoot(tmp_path)
    root.claim("plant", "n1", "s")
    root.write(f"plant/n1/{segment_name(1, 10)}", text(b"x"))
    for name in (f".tmp-77-{segment_name(11, 20)}", ".tmp-"):
        (tmp_path / "plant/n1" / name).write_bytes(b"half")
    (tmp_path / "plant/n1/.hidden").write_bytes(b"not ours")
    assert [each.range for each in root.segments("plant", "n1")] == [(1, 10)]
    root.delete_temporary("plant/n1")
    assert sorted(path.name for path in (tmp_path / "plant/n1").iterdir()) == [
        ".hidden",
        segment_name(1, 10),
        "_owner.json",
    ]


def test_a_file_that_is_being_written_is_not_cleaned_up(tmp_path: Path) -> None:
    """As by a sealer that starts while `semel stream trim` records what it deletes."""
    writer, cleaner = LocalRoot(tmp_path), LocalRoot(tmp_path)

    def fill(sink: Any) -> None:
        sink.write(b"one")
        cleaner.delete_temporary("plant/n1")

    assert writer.write("plant/n1/a", fill) == 3
    assert content(writer, "plant/n1/a") == b"one"
    assert writer.write("plant/n1/b", fill, exclusive=True) == 3
    assert [each.name for each in sorted(writer.entries("plant/n1"), key=str)] == ["a", "b"]


def test_a_file_that_is_cleaned_up_before_it_is_locked_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = LocalRoot(tmp_path)
    lock = fcntl.flock
    created: list[str] = []

    def clean_first(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        created.extend(each.name for each in root.entries("plant/n1"))
        root.delete_temporary("plant/n1")
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", clean_first)
    root.write("plant/n1/a", text(b"one"))
    assert len(created) == 1
    assert [each.name for each in root.entries("plant/n1")] == ["a"]
    assert content(root, "plant/n1/a") == b"one"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the system is asked to do that lasts, in order: which call, and the last path of it."""
    found: list[tuple[str, str]] = []

    def watch(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            result = real(*arguments, **named)
            path = arguments[0] if name == "mkdir" else arguments[-1]
            if name == "fsync":
                path = os.readlink(f"/proc/self/fd/{path}")
            found.append((name, str(path)))
            return result

        return call

    for name in ("fsync", "rename", "mkdir", "link"):
        monkeypatch.setattr(os, name, watch(name, getattr(os, name)))
    return found


def test_a_file_and_its_new_folders_reach_the_disk_before_they_count(
    tmp_path: Path, asked: list[tuple[str, str]]
) -> None:
    place = tmp_path / "record"
    LocalRoot(place).write("plant/n1/file", text(b"x"))
    calls = [(name, path.removeprefix(str(tmp_path))) for name, path in asked]
    # Each new folder lasts: the one above it is synced after it is made.
    assert calls[:-3] == [
        ("mkdir", "/record"),
        ("fsync", ""),
        ("mkdir", "/record/plant"),
        ("fsync", "/record"),
        ("mkdir", "/record/plant/n1"),
        ("fsync", "/record/plant"),
    ]
    # The file is synced under its temporary name, then it gets its name, then its folder is synced.
    assert [name for name, _ in calls[-3:]] == ["fsync", "rename", "fsync"]
    assert calls[-3][1].startswith("/record/plant/n1/.tmp-")
    assert calls[-2:] == [("rename", "/record/plant/n1/file"), ("fsync", "/record/plant/n1")]


def test_a_file_of_one_who_died_is_synced_with_all_its_folders(
    tmp_path: Path, asked: list[tuple[str, str]]
) -> None:
    (tmp_path / "record/plant/n1").mkdir(parents=True)
    (tmp_path / "record/plant/n1/file").write_bytes(b"x")
    asked.clear()
    LocalRoot(tmp_path / "record").fsync("plant/n1/file")
    assert [path.removeprefix(str(tmp_path)) for name, path in asked if name == "fsync"] == [
        "",
        "/record",
        "/record/plant",
        "/record/plant/n1/file",
        "/record/plant/n1",
    ]


def test_a_file_system_without_links_still_has_fresh_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    root = LocalRoot(tmp_path)
    root.claim("plant", "n1", "store-a")
    with pytest.raises(FileExistsError):
        root.write("plant/n1/_owner.json", text(b"x"), exclusive=True)
    assert root.owner("plant", "n1") == "store-a"
    assert len(list((tmp_path / "plant/n1").iterdir())) == 1


def test_a_folder_that_fails_to_sync_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = LocalRoot(tmp_path)
    root.write("plant/n1/a", text(b"one"))
    sync = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(5, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        root.write("plant/n1/b", text(b"two"))


# --- an object store ------------------------------------------------------------------------------


def test_an_object_is_put_once_by_its_final_name() -> None:
    store = ObjectStore()
    object_root(store).write("plant/n1/a", text(b"one"))
    assert store.puts == ["bucket/record/plant/n1/a"]
    assert store.objects == {"bucket/record/plant/n1/a": b"one"}


def test_a_size_that_is_not_what_was_put_is_an_error() -> None:
    store = ObjectStore()
    store.lose = 1
    with pytest.raises(OSError, match="was written with 3 bytes, but has 2"):
        object_root(store).write("plant/n1/a", text(b"one"))
    assert store.objects == {}
    store.lose = 0
    assert object_root(store).write("plant/n1/a", text(b"one")) == 3


@pytest.mark.parametrize("step", ["put", "close", "get"])
def test_a_failing_store_is_an_error_and_works_again(step: str) -> None:
    store = ObjectStore()
    root = object_root(store)

    def fail(now: str, path: str) -> None:
        if now == step:
            raise ConnectionResetError("the store is away")

    store.trouble = fail
    with pytest.raises(OSError, match="the store is away"):
        root.write("plant/n1/a", text(b"one"))
    store.trouble = lambda now, path: None
    assert root.write("plant/n1/a", text(b"one")) == 3
    assert content(root, "plant/n1/a") == b"one"


def test_half_an_object_that_a_failed_put_left_is_deleted() -> None:
    """Closing pyarrow's stream puts what it has, also after a write that failed."""
    store = ObjectStore()
    root = object_root(store)

    def fail(step: str, path: str) -> None:
        if step == "close":
            store.objects[path] = b""
            raise ConnectionResetError("the store is away")

    store.trouble = fail
    with pytest.raises(OSError, match="the store is away"):
        root.write("plant/n1/a", text(b"one"))
    assert store.objects == {}


def test_an_object_store_without_times_lists_old_files() -> None:
    filesystem = fs._MockFileSystem()
    filesystem.create_dir("bucket/plant/n1")
    root = ObjectRoot(filesystem, "bucket", "mock://bucket")
    root.write(f"plant/n1/{segment_name(1, 1)}", text(b"x"))
    assert [each.range for each in root.segments("plant", "n1")] == [(1, 1)]


# --- addresses ------------------------------------------------------------------------------------


def test_a_path_and_a_file_address_are_folders(tmp_path: Path) -> None:
    place = tmp_path / "a b"
    for address in (place, str(place), place.as_uri(), f"file://localhost{tmp_path}/a%20b"):
        root = open_root(address)
        assert isinstance(root, LocalRoot)
        root.write("plant/n1/a", text(b"x"))
        assert (place / "plant/n1/a").exists()
        root.delete("plant/n1/a")


def test_a_relative_folder_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = open_root("streams")
    monkeypatch.chdir("/")
    root.write("plant/n1/a", text(b"x"))
    assert (tmp_path / "streams/plant/n1/a").exists()


def test_an_object_store_has_its_address_without_secrets() -> None:
    root = open_root("s3://key:secret@bucket/record?region=eu-west-1")
    assert isinstance(root, ObjectRoot)
    assert root.address == "s3://bucket/record"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("", "the root is empty"),
        ("http://key:secret@host/x?token=secret", "http://host/x is not a root"),
        ("hdfs://host/x", "is not a root: give a folder or one of file://, s3://"),
        ("file://elsewhere/x", "is not a local folder"),
        ("file://", "is not a local folder"),
        ("s3://", "does not name a bucket"),
        ("s3://key:secret@bucket/x?region=a&nonsense=secret", "s3://bucket/x cannot be opened"),
        ("http://[host/x", "an address cannot have"),
        ("s3:/bucket/x", "^s3:…: it has no ://: write s3://"),
        ("file:/srv/x", "^file:…: it has no ://: write file:///folder"),
    ],
)
def test_an_address_that_is_no_root_is_refused_with_a_sentence(address: str, words: str) -> None:
    with pytest.raises(RootError, match=words) as caught:
        open_root(address)
    assert "key:secret" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    ["./s3:/bucket", "/srv/s3:/a:b@c", "s3", "s3/bucket", "day:1", "gs", "a@b/c:d", "files"],
)
def test_a_folder_with_a_name_that_is_not_an_address_is_one(address: str, tmp_path: Path) -> None:
    assert isinstance(open_root(address), LocalRoot)
    assert without_secrets(address) == address


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("abfs://container:secret@host/p?sig=x", "abfs://host/p"),
        ("/plain/path?x@y", "/plain/path?x@y"),
        ("s3://bucket/a@b.csv?region=a@b", "s3://bucket/a@b.csv"),
        ("s3://bucket/a:b", "s3://bucket/a:b"),
        ("abfs://box@acct.dfs.core.windows.net/a@b", "abfs://acct.dfs.core.windows.net/a@b"),
        ("abfs://acct:key@127.0.0.1:10000/box", "abfs://127.0.0.1:10000/box"),
        ("file:///srv/a:b@c", "file:///srv/a:b@c"),
        ("hdfs://host:8020/x", "hdfs://host:8020/x"),
    ],
)
def test_addresses_for_people_have_no_secrets_and_all_the_rest(address: str, shown: str) -> None:
    assert without_secrets(address) == shown


@pytest.mark.parametrize(("address", "shown", "words"), WRONG_SECRETS)
def test_an_address_with_a_wrong_secret_is_refused_and_shows_nothing_of_it(
    address: str, shown: str, words: str
) -> None:
    with pytest.raises(RootError, match=f"^{shown}: .*{words}") as caught:
        open_root(address)
    assert "hid" not in without_secrets(address)
    assert "hid" not in str(caught.value)
    # Nor does a traceback, which Spark shows of a task that failed.
    raised = "".join(traceback.format_exception(caught.value, limit=0))
    assert "hid" not in raised
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "s3://AKIA:hidden-away@bucket/a b?region=eu-1",
        "s3://AKIA:hidden-away@bucket/x?endpoint_override=a b",
        "s3://AKIA:hid@bucket/x?region=%ZZ",
    ],
)
def test_what_pyarrow_says_of_an_address_is_left_out_where_it_shows_it(address: str) -> None:
    with pytest.raises(ValueError, match="hid"):
        fs.FileSystem.from_uri(address)
    with pytest.raises(
        RootError, match=r"s3://bucket/.* cannot be opened: .*hexadecimal"
    ) as caught:
        open_root(address)
    assert "hid" not in "".join(traceback.format_exception(caught.value, limit=0))


def test_what_pyarrow_says_of_an_address_is_kept_where_it_does_not() -> None:
    with pytest.raises(RootError, match=r"Unexpected query parameter .*'nonsense'"):
        open_root("s3://key:hidden-away@bucket/x?region=a&nonsense=1")


@pytest.mark.parametrize(
    "address",
    [
        "s3://AKIA:hid%2Fden%40%3F%23%20+=@bucket/a%40b?region=eu-1",
        "s3://bucket/a@b?region=eu-1",
        "s3://bucket/a%40b?region=eu-1&endpoint_override=localhost:9000",
        "gs://bucket/a@b",
        "abfs://bucket@acct.dfs.core.windows.net/a@b",
        "abfs://bucket@a.dfs.core.windows.net/a@b?client_id=a&tenant_id=b&client_secret=c@d",
        "abfs://acct:hidden@127.0.0.1:10000/bucket/a%40b?enable_tls=false",
    ],
)
def test_an_at_sign_in_a_path_is_escaped_after_a_secret_and_may_be_plain_without(
    address: str,
) -> None:
    root = open_root(address)
    assert isinstance(root, ObjectRoot)
    assert root._full("x") == "bucket/a@b/x"
    assert "hid" not in root.address


def test_a_server_in_brackets_is_refused_and_one_by_its_number_is_not() -> None:
    # pyarrow ends the process.
    with pytest.raises(RootError, match="IPv4"):
        open_root("abfs://acct:key@[::1]:10000/box")
    assert open_root("abfs://acct:key@127.0.0.1:10000/box").address == "abfs://127.0.0.1:10000/box"


def test_the_note_of_the_owner_is_json_for_people_too(tmp_path: Path) -> None:
    LocalRoot(tmp_path).claim("plant", "n1", "store-a")
    assert json.loads((tmp_path / "plant/n1/_owner.json").read_text()) == {"store": "store-a"}


def test_pyarrow_reads_what_a_root_opens(root: Root) -> None:
    root.write("plant/n1/a", text(b"0123456789"))
    with root.read("plant/n1/a") as file:
        wrapped = file if isinstance(file, pa.NativeFile) else pa.PythonFile(file, mode="r")
        wrapped.seek(4)
        assert wrapped.read(3) == b"456"
