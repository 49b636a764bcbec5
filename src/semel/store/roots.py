"""Roots: where segments are kept, a folder or an object store, behind one small class.

    <root>/<stream>/<node>/<first>-<last>.parquet    segments
                           _owner.json               the id of the store whose folder this is
                           _trimmed-<seq>.json       retention deleted the rows up to seq

A `Root` lists, writes, reads and deletes files by their place below it, and a file is there whole
or not at all. What the files mean is written once, in the methods that all roots share. Readers
ignore all names that are not segments'; Spark and others skip those that begin with `_` or `.`.

`_trimmed-<seq>.json` is why numbers never start anew: it is written before the rows up to seq are
deleted, so that the highest seq is known also when no segment is left. The number is in the name,
so that one listing tells all, and two who trim at once cannot undo each other's. From then on a
segment that ends with that seq or before it is not there, whether or not its file is: so all of
them go at one moment, and one that somebody who was merging writes anew does not come back.
"""

import errno
import json
import mmap
import os
import re
import secrets
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from semel.counts import count
from semel.extras import need
from semel.store.segments import MAXIMUM_SEQ, Range, parse_segment_name, segment_name

OWNER: Final = "_owner.json"
TEMPORARY: Final = ".tmp-"
_TRIMMED: Final = re.compile(r"_trimmed-([0-9]{20})\.json", re.ASCII)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# How an address begins whose :// is not there whole; pathlib makes s3:/ of s3://.
_MISSPELLED: Final = re.compile(
    r"(file|s3[an]?|gs|gcs|abfss?|az|azure|adls?|wasbs?|hdfs|https?)(:|;|//)", re.IGNORECASE
)
_MAY_HOLD_SECRET: Final = re.compile(r"[^./@:][^/@:]*:.*@", re.DOTALL)
_HOST: Final = re.compile(r"[^:]*(:[0-9]{0,5})?", re.ASCII)
# What may be before an @ as it is: what RFC 3986 says, section 3.2.1.
_USER: Final = re.compile(r"([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*", re.ASCII)
_BREAKS: Final = re.compile(r"[\t\r\n]")
_OPTION: Final = re.compile(r"[a-z_]+", re.ASCII)
# Addresses of pyarrow.fs that are object stores: a file there is put whole or not at all.
OBJECT_STORES: Final = ("s3", "gs", "gcs", "abfs", "abfss")


class RootError(Exception):
    """A root cannot be used; the text says why and what to do."""


class NotOwned(RootError):
    """The folder of a node belongs to another store."""


@dataclass(frozen=True)
class Entry:
    """A file or folder as listed; `modified` is in seconds of the wall clock."""

    name: str
    is_folder: bool
    size: int
    modified: float


@dataclass(frozen=True)
class Segment:
    """A segment as listed."""

    first: int
    last: int
    size: int
    modified: float

    @property
    def name(self) -> str:
        return segment_name(self.first, self.last)

    @property
    def range(self) -> Range:
        return self.first, self.last

    @property
    def rows(self) -> int:
        return self.last - self.first + 1

    def covers(self, other: "Segment") -> bool:
        """Whether it holds all rows of another one."""
        return self.range != other.range and self.first <= other.first and other.last <= self.last


def check_folder_name(kind: str, name: str) -> None:
    """Raise RootError if a stream or node of that name cannot have a folder."""
    if not name or name.startswith((".", "_")) or any(sign in name for sign in "/\\\0"):
        raise RootError(
            f"{kind} {name!r} cannot name a folder: it must not be empty, begin with '.' or '_', "
            "or contain a slash"
        )


class Root(ABC):
    """Files below one place, each there whole or not at all."""

    # The address for people: without what is secret in it.
    address: str

    def __init__(self, address: str) -> None:
        self.address = address

    # --- what a root can do -----------------------------------------------------------------------

    @abstractmethod
    def entries(self, folder: str) -> list[Entry]:
        """What is in a folder; nothing if there is no such folder."""

    @abstractmethod
    def write(self, path: str, fill: Callable[[Any], None], *, fresh: bool = False) -> int:
        """Write the file that `fill` writes into the sink it is given; returns its bytes.

        The sink is a binary file that can also be read, at any place.

        When this returns the file lasts. If it raises, the old file or none is there, or the new
        one, whole. With `fresh`, FileExistsError if there is such a file.
        """

    @abstractmethod
    def read(self, path: str) -> Any:
        """A file, open for reading at any place. FileNotFoundError if it is not there."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file, if it is there."""

    @abstractmethod
    def settle(self, path: str) -> None:
        """A file that is there is to last, whoever wrote it and died before it did."""

    @abstractmethod
    def clean(self, folder: str) -> None:
        """Delete what unfinished writes left. For the owner, while nobody writes."""

    # --- what the files mean ----------------------------------------------------------------------

    def place(self, stream: str, node: str, name: str) -> str:
        """The path of a file of (stream, node)."""
        return f"{self.folder(stream, node)}/{name}"

    def folder(self, stream: str, node: str) -> str:
        """The path of the folder of (stream, node)."""
        check_folder_name("stream", stream)
        check_folder_name("node", node)
        return f"{stream}/{node}"

    def streams(self) -> list[str]:
        """The streams that have a folder, sorted."""
        return _folders(self.entries(""))

    def nodes(self, stream: str) -> list[str]:
        """The nodes that have a folder for a stream, sorted."""
        check_folder_name("stream", stream)
        return _folders(self.entries(stream))

    def entries_by_node(self, stream: str) -> dict[str, list[Entry]]:
        """What is in the folder of each node of a stream, by one listing where that can be."""
        return {node: self.entries(self.folder(stream, node)) for node in self.nodes(stream)}

    def segments(self, stream: str, node: str) -> list[Segment]:
        """All segments, covered ones too, sorted by their ranges; but none that was trimmed."""
        entries = self.entries(self.folder(stream, node))
        trimmed = trimmed_in(entries)
        return [each for each in segments_in(entries) if each.last > trimmed]

    def drop_trimmed(self, stream: str, node: str) -> None:
        """Delete the files of segments that were trimmed."""
        entries = self.entries(self.folder(stream, node))
        trimmed = trimmed_in(entries)
        for segment in segments_in(entries):
            if segment.last <= trimmed:
                self.delete(self.place(stream, node, segment.name))

    def highest_seq(self, stream: str, node: str) -> int:
        """The highest seq that this root has or had; 0: none."""
        entries = self.entries(self.folder(stream, node))
        return max([trimmed_in(entries), *(each.last for each in segments_in(entries))])

    def trimmed(self, stream: str, node: str) -> int:
        """Rows up to this one were deleted by retention; 0: none."""
        return trimmed_in(self.entries(self.folder(stream, node)))

    def set_trimmed(self, stream: str, node: str, through: int) -> None:
        """Keep that rows up to `through` are deleted. Before they are."""
        before = self.entries(self.folder(stream, node))
        if through <= trimmed_in(before):
            return
        name = f"_trimmed-{through:020}.json"
        self._write_note(self.place(stream, node, name), {"trimmed": through})
        for entry in before:
            if _trimmed_by(entry) is not None:
                self.delete(self.place(stream, node, entry.name))

    def owner(self, stream: str, node: str) -> str | None:
        """The id of the store whose folder this is; None: it does not say."""
        return next(iter(self.owners(stream, node)), None)

    def owners(self, stream: str, node: str) -> list[str]:
        """The same, and then those that it was adopted from: its numbers go on from theirs."""
        path = self.place(stream, node, OWNER)
        try:
            with self.read(path) as file:
                note = json.loads(bytes(file.read()))
        except FileNotFoundError:
            return []
        except ValueError as problem:
            raise RootError(f"{self.address}: {path} is damaged: {problem}") from problem
        if not isinstance(note, dict) or not isinstance(note.get("store"), str):
            raise RootError(f"{self.address}: {path} is damaged: it names no store")
        before = note.get("before")
        return [note["store"], *map(str, before if isinstance(before, list) else [])]

    def claim(self, stream: str, node: str, store: str, *, adopt: bool = False) -> None:
        """Make the folder of (stream, node) that store's, or raise NotOwned if it is another's.

        With `adopt` it is taken from whoever had it, and so is one with segments that says
        nothing. On an object store two that claim at the same moment are told apart only when
        one of them claims again: nothing there can be made if and only if it is not there yet.
        """
        path = self.place(stream, node, OWNER)
        before = self.owners(stream, node)
        owner = before[0] if before else None
        if owner == store:
            return
        where = f"{self.address}: the folder of stream {stream}, node {node}"
        advice = "give this broker a node name of its own (--node)"
        if owner is None and self.segments(stream, node) and not adopt:
            raise NotOwned(f"{where} holds segments but does not say whose: {advice}")
        if owner is not None and not adopt:
            raise NotOwned(f"{where} belongs to store {owner}, not to {store}: {advice}")
        with suppress(FileExistsError):
            note = {"store": store, **({"before": before} if before else {})}
            self._write_note(path, note, fresh=owner is None)
        owner = self.owner(stream, node)
        if owner != store:
            raise NotOwned(f"{where} belongs to store {owner}, not to {store}: {advice}")

    def _write_note(self, path: str, note: dict[str, Any], *, fresh: bool = False) -> None:
        data = json.dumps(note).encode() + b"\n"

        def fill(sink: Any) -> None:
            sink.write(data)

        self.write(path, fill, fresh=fresh)


def segments_in(entries: list[Entry]) -> list[Segment]:
    """The segments among the files of a folder, sorted by their ranges."""
    found = []
    for entry in entries:
        limits = None if entry.is_folder else parse_segment_name(entry.name)
        if limits is not None:
            found.append(Segment(*limits, entry.size, entry.modified))
    return sorted(found, key=lambda each: each.range)


def trimmed_in(entries: list[Entry]) -> int:
    """The last row that retention deleted, as the files of a folder tell."""
    return max((_trimmed_by(entry) or 0 for entry in entries), default=0)


def _trimmed_by(entry: Entry) -> int | None:
    match = None if entry.is_folder else _TRIMMED.fullmatch(entry.name)
    return min(int(match[1]), MAXIMUM_SEQ) if match else None


def _folders(entries: list[Entry]) -> list[str]:
    return sorted(
        entry.name for entry in entries if entry.is_folder and not entry.name.startswith((".", "_"))
    )


class LocalRoot(Root):
    """A folder of this machine. Needs no optional package."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path.absolute()
        # Folders that this object has seen reach the disk, with all above them.
        self._lasting: set[Path] = set()

    def entries(self, folder: str) -> list[Entry]:
        found = []
        try:
            with os.scandir(self._path / folder) as entries:
                for entry in entries:
                    # One that is deleted meanwhile was not there.
                    with suppress(FileNotFoundError):
                        status = entry.stat()
                        found.append(
                            Entry(entry.name, entry.is_dir(), status.st_size, status.st_mtime)
                        )
        except FileNotFoundError:
            return []
        return found

    def write(self, path: str, fill: Callable[[Any], None], *, fresh: bool = False) -> int:
        target = self._path / path
        self._make_folder(target.parent)
        temporary = target.with_name(f"{TEMPORARY}{secrets.token_hex(8)}-{target.name}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600)
        try:
            with open(descriptor, "w+b") as file:
                fill(file)
                file.flush()
                os.fsync(descriptor)
                size = os.fstat(descriptor).st_size
            if fresh:
                _name_anew(temporary, target)
            else:
                temporary.rename(target)
        except BaseException:
            with suppress(FileNotFoundError):
                temporary.unlink()
            raise
        _sync_folder(target.parent)
        return size

    def read(self, path: str) -> Any:
        return open(self._path / path, "rb", buffering=0)

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            (self._path / path).unlink()

    def settle(self, path: str) -> None:
        target = self._path / path
        self._make_folder(target.parent)
        descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _sync_folder(target.parent)

    def clean(self, folder: str) -> None:
        for entry in self.entries(folder):
            if entry.name.startswith(TEMPORARY) and not entry.is_folder:
                self.delete(f"{folder}/{entry.name}")

    def _make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, and let them last.

        Those that are there may be of one who died before they did: each is synced once. Above
        the root they are the user's, unless they are made here.
        """
        if folder in self._lasting:
            return
        is_below = folder != self._path and folder.is_relative_to(self._path)
        if is_below or not folder.parent.is_dir():
            self._make_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        _sync_folder(folder.parent)
        self._lasting.add(folder)


def _name_anew(temporary: Path, target: Path) -> None:
    """Give a file its name, or raise FileExistsError if that is taken."""
    try:
        # Unlike a rename this does not replace what is there.
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:
        # A file system without links: there it is looked up first.
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        temporary.rename(target)
    else:
        temporary.unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ObjectRoot(Root):
    """An object store that pyarrow can write: a file appears with the PUT of its final name."""

    def __init__(
        self, filesystem: Any, path: str, address: str, *, bucket: str | None = None
    ) -> None:
        """For a pyarrow.fs.FileSystem, and a path in it; `bucket` is one that has to be there."""
        super().__init__(address)
        self._bucket = bucket
        self._filesystem = filesystem
        self._path = path.rstrip("/")
        self._fs = need("pyarrow.fs", extra="broker", by="a root on an object store")

    def _full(self, path: str) -> str:
        return f"{self._path}/{path}".strip("/")

    def entries(self, folder: str) -> list[Entry]:
        selector = self._fs.FileSelector(self._full(folder), allow_not_found=True)
        found = []
        for info in self._filesystem.get_file_info(selector):
            if info.type == self._fs.FileType.NotFound:
                continue
            is_folder = info.type == self._fs.FileType.Directory
            modified = 0.0 if info.mtime_ns is None else info.mtime_ns / 1e9
            found.append(Entry(info.base_name, is_folder, info.size or 0, modified))
        if not found:
            self._check_bucket()
        return found

    def entries_by_node(self, stream: str) -> dict[str, list[Entry]]:
        check_folder_name("stream", stream)
        above = self._full(stream)
        # All that is below, a thousand files per request, however many nodes there are.
        selector = self._fs.FileSelector(above, allow_not_found=True, recursive=True)
        found: dict[str, list[Entry]] = {}
        for info in self._filesystem.get_file_info(selector):
            node, _, name = info.path.removeprefix(f"{above}/").partition("/")
            if (
                node.startswith((".", "_"))
                or "/" in name
                or info.type == self._fs.FileType.NotFound
            ):
                continue
            if info.type == self._fs.FileType.Directory:
                if not name:
                    found.setdefault(node, [])
            elif name:
                modified = 0.0 if info.mtime_ns is None else info.mtime_ns / 1e9
                found.setdefault(node, []).append(Entry(name, False, info.size or 0, modified))
        if not found:
            self._check_bucket()
        return dict(sorted(found.items()))

    def _check_bucket(self) -> None:
        """Where there is no bucket there are no files; but nobody can have meant that."""
        bucket = self._bucket
        if bucket is None:
            return
        if self._filesystem.get_file_info(bucket).type == self._fs.FileType.NotFound:
            raise OSError(f"{self.address}: there is no bucket {bucket}")
        self._bucket = None  # asked once

    def write(self, path: str, fill: Callable[[Any], None], *, fresh: bool = False) -> int:
        full = self._full(path)
        if fresh and self._size(full) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        # To a file of ours first: closing a stream of pyarrow's puts what it was given, also
        # after an error, and so the stream is opened when nothing but the network can fail.
        with tempfile.TemporaryFile() as spool:
            fill(spool)
            spool.flush()
            size = os.fstat(spool.fileno()).st_size
            try:
                with mmap.mmap(spool.fileno(), size, access=mmap.ACCESS_READ) as data:
                    self._put(full, data)
                there = self._size(full)
                if there != size:
                    raise OSError(
                        f"{self.address}: {path} was put with {count(size, 'byte')} and has {there}"
                    )
            except OSError:
                # What was put of it, if anything, is not the file.
                with suppress(OSError):
                    if self._size(full) not in (None, size):
                        self._filesystem.delete_file(full)
                raise
        return size

    def _put(self, full: str, data: Any) -> None:
        with self._filesystem.open_output_stream(full) as stream:
            # One call: nothing of ours runs between two halves of a file.
            stream.write(data)

    def _size(self, full: str) -> int | None:
        info = self._filesystem.get_file_info(full)
        return info.size if info.type == self._fs.FileType.File else None

    def read(self, path: str) -> Any:
        return self._filesystem.open_input_file(self._full(path))

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(self._full(path))

    def settle(self, path: str) -> None:
        return  # what was put lasts

    def clean(self, folder: str) -> None:
        return  # what was not put whole is not there


_UNCERTAIN: Final = (
    "it is not certain where its secret ends: write /, @, ? and # in a key or secret as %2F, %40, "
    "%3F and %23, and @ in a path or an option as %40"
)
_FOREIGN: Final = (
    "it has a sign before its path that no address may have: write those of a key or secret as % "
    "and two hexadecimal digits, / as %2F"
)
_NO_SLASHES: Final = "it has no ://: write {}, or begin it with ./ if it is a folder"
_IS_IT_A_FOLDER: Final = (
    "there may be a secret in it: write an address as s3://key:secret@bucket/folder, or begin it "
    "with ./ if it is a folder"
)
# What was meant, by how the scheme begins.
_MEANT: Final = {
    "file": "file:///folder",
    "s3": "s3://bucket/folder",
    "g": "gs://bucket/folder",
    "a": "abfs://container@account.dfs.core.windows.net/folder",
    "w": "abfs://container@account.dfs.core.windows.net/folder",
    "h": "an address such as s3://bucket/folder",
}
_KEYS: Final = {
    "abfs": "abfs://container:key@account.dfs.core.windows.net/folder",
    "s3": "s3://key:secret@bucket/folder",
}


def without_secrets(address: str) -> str:
    """An address for people to read: without user, password and options.

    Nor is anything shown that may be part of a secret in an address that is wrong. Never raises.
    """
    return _looked_at(address)[0]


def _looked_at(address: str) -> tuple[str, str | None]:
    """An address for people, and why it is not certain where its secret ends; None: it is.

    A secret comes after a `:` and before an `@`. So it may reach to the last @ before the options,
    beyond a / that ought to be %2F; without a : before it, an @ is one of a path and hides nothing.
    """
    match = _SCHEME.match(address)
    if match is None:
        return _looked_at_path(address)
    scheme = match[0].lower()
    place, options = _halves(address, match)
    if scheme == "file://" and place.startswith("/"):
        return scheme + place, None
    authority, slash, path = place.partition("/")
    user, _, host = authority.rpartition("@")
    before, _, after = place.rpartition("@")
    may_hold = _has_colon(before)
    if "@" in options and (may_hold or (":" in host and not user)):
        return f"{scheme}…", _UNCERTAIN
    if may_hold and before != user:
        return scheme + after, _UNCERTAIN
    if not may_hold and not _HOST.fullmatch(host):
        example = _KEYS["abfs" if scheme.startswith("abfs") else "s3"]
        return f"{scheme}…", f"a key stands before an @, as in {example}"
    return scheme + host + slash + path, None


def _looked_at_path(path: str) -> tuple[str, str | None]:
    """A path for people, and why it may be an address with a mistake; None: it is a path."""
    match = _MISSPELLED.match(path)
    if match is not None:
        scheme = match[1].lower()
        meant = next(text for begins, text in _MEANT.items() if scheme.startswith(begins))
        return f"{scheme}:…", _NO_SLASHES.format(meant)
    if _MAY_HOLD_SECRET.match(path):
        return "…", _IS_IT_A_FOLDER
    return path, None


def check_path(path: str) -> None:
    """Raise RootError for a path that may be an address with a mistake, and show nothing of it."""
    shown, problem = _looked_at_path(path)
    if problem is not None:
        raise RootError(f"{shown}: {problem}")


def _halves(address: str, scheme: re.Match[str]) -> tuple[str, str]:
    """What follows the scheme, before and after the sign that begins the options."""
    rest = _BREAKS.sub("", address[scheme.end() :])
    place, *options = re.split(r"[?#]", rest, maxsplit=1)
    return place, "".join(options)


def _has_colon(text: str) -> bool:
    return ":" in text or "%3a" in text.lower()


def read_address(address: str) -> SplitResult:
    """The parts of an address with a scheme. Raises RootError, whose sentence shows no secret.

    If it is not certain what is secret in it, it is refused: half a secret would be the name of
    the bucket that is asked for, and stand in whatever is said about that. So is what pyarrow
    would pass over or not survive.
    """
    shown, problem = _looked_at(address)
    try:
        parts = urlsplit(address)
    except ValueError:
        # Its text shows the part that is wrong, which may be secret.
        raise RootError(f"{shown}: {problem or _FOREIGN}") from None
    scheme = parts.scheme.lower()
    if scheme not in OBJECT_STORES:
        return parts
    if problem is not None:
        raise RootError(f"{shown}: {problem}")
    if _BREAKS.search(address):
        # urlsplit would leave it out, pyarrow would not.
        raise RootError(f"{shown}: there is a tab or the end of a line in the address: remove it")
    user, _, host = parts.netloc.rpartition("@")
    if not _USER.fullmatch(user):
        raise RootError(f"{shown}: {_FOREIGN}")
    if "[" in host:
        raise RootError(f"{shown}: a server is called by its name or IPv4 address, without [ and ]")
    if ":" in host and not scheme.startswith("abfs"):
        raise RootError(
            f"{shown}: a bucket has no port: name a server by the option "
            "endpoint_override=host:port"
        )
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        # What follows an unescaped & would be shown as the name of an option.
        if not _OPTION.fullmatch(name):
            raise RootError(
                f"{shown}: write its options as ?name=value&name=value, the names in small letters "
                "and & in a value as %26"
            )
        if name == "endpoint_override" and "@" in value:
            raise RootError(
                f"{shown}: option 'endpoint_override' of the address is host:port, without a key: "
                f"that stands before the bucket, as in {_KEYS['s3']}"
            )
    return parts


def open_root(address: str | Path) -> Root:
    """The root at an address: a folder, file://, or an object store (s3://, gs://, abfs://).

    Raises RootError with a sentence if there can be none. Whether a folder can be written shows
    when it is; an object store is asked nothing yet, but for what pyarrow wants to know of it.
    """
    if isinstance(address, Path) or not _SCHEME.match(address):
        if not str(address):
            raise RootError("the root is empty: give a folder or an address such as s3://bucket/x")
        check_path(str(address))
        return LocalRoot(Path(address))
    shown = without_secrets(address)
    parts = read_address(address)
    scheme = parts.scheme.lower()
    if scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise RootError(f"{shown} names no folder of this machine: write file:///folder")
        return LocalRoot(Path(unquote(parts.path)))
    if scheme not in OBJECT_STORES:
        known = ", ".join(f"{each}://" for each in ("file", *OBJECT_STORES))
        raise RootError(f"{shown} is no root: give a folder or one of {known}")
    fs = need("pyarrow.fs", extra="broker", by=f"the root {shown}")
    try:
        filesystem, path = fs.FileSystem.from_uri(address)
    except (OSError, ValueError) as problem:
        said = _said(str(problem), address, parts)
        # Not from the problem: a traceback would show what is left out here.
        raise RootError(f"the root {shown} cannot be opened: {said}") from None
    if not path:
        raise RootError(f"{shown} names no bucket")
    return ObjectRoot(filesystem, path, shown, bucket=path.partition("/")[0])


def _said(text: str, address: str, parts: SplitResult) -> str:
    """What pyarrow says of an address, but never what shows it whole or its secret."""
    secret = parts.netloc.rpartition("@")[0].partition(":")[2]
    # The shortest secrets there are have eight signs; what is shorter is in many words.
    hidden = (address, *(each for each in (secret, unquote(secret)) if len(each) >= 8))
    if any(each in text for each in hidden):
        return (
            "it is no address: write what is no letter or digit and none of - . _ ~ in a name "
            "or an option as % and two hexadecimal digits"
        )
    return " ".join(text.split())
