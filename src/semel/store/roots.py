"""Roots: where segments are stored, in a folder or an object store, behind one interface.

    <root>/<stream>/<node>/<first>-<last>.parquet    segments
                           _owner.json               the id of the store that owns this folder
                           _trimmed-<seq>.json       rows up to seq have been deleted

A `Root` lists, writes, reads and deletes files by their path below it. Files are written
atomically. Methods that all roots share interpret the files. Our readers ignore every name that is
not a segment's; Spark and others skip names that begin with `_` or `.`.

Because of `_trimmed-<seq>.json` seqs never restart: it is written before the rows up to seq are
deleted, so that the highest seq is known even if no segment is left. The seq is in the name, so
that one listing returns it, and two processes that trim at once cannot undo each other. From then
on a segment that ends at or before this seq is ignored, whether or not its file still exists: all
of them disappear at the same moment, and one that a concurrent merge writes again stays deleted.
"""

import errno
import json
import mmap
import os
import re
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
from semel.store.segment_names import MAXIMUM_SEQ, Range, parse_segment_name, segment_name
from semel.store.temporary_files import TEMPORARY, create_temporary, delete_unlocked

OWNER: Final = "_owner.json"
_TRIMMED: Final = re.compile(r"_trimmed-([0-9]{20})\.json", re.ASCII)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# The start of an address with an incomplete ://; pathlib turns s3:// into s3:/.
_MISSPELLED: Final = re.compile(
    r"(file|s3[an]?|gs|gcs|abfss?|az|azure|adls?|wasbs?|hdfs|https?)(:|;|//)", re.IGNORECASE
)
_MAY_HAVE_SECRET: Final = re.compile(r"[^./@:][^/@:]*:.*@", re.DOTALL)
_HOST: Final = re.compile(r"[^:]*(:[0-9]{0,5})?", re.ASCII)
# The characters that may precede an @ unescaped (RFC 3986, section 3.2.1).
_USER: Final = re.compile(r"([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*", re.ASCII)
_BREAKS: Final = re.compile(r"[\t\r\n]")
_OPTION: Final = re.compile(r"[a-z_]+", re.ASCII)
# The schemes of object stores in pyarrow.fs, on which a PUT creates a file atomically.
OBJECT_STORES: Final = ("s3", "gs", "gcs", "abfs", "abfss")


class RootError(Exception):
    """A root cannot be used. The text says why and what to do."""


class NotOwned(RootError):
    """The folder of a node belongs to another store."""


@dataclass(frozen=True)
class RootEntry:
    """A file or folder in a listing; `modified` is a wall clock time in seconds."""

    name: str
    is_folder: bool
    size: int
    modified: float


@dataclass(frozen=True)
class Segment:
    """A segment in a listing."""

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
        """Whether this segment holds all rows of another one."""
        return self.range != other.range and self.first <= other.first and other.last <= self.last


def check_folder_name(kind: str, name: str) -> None:
    """Check that a stream or node of this name can have a folder. Raises RootError."""
    if not name or name.startswith((".", "_")) or any(sign in name for sign in "/\\\0"):
        raise RootError(
            f"{kind} {name!r} cannot name a folder: it must not be empty, begin with '.' or '_', "
            "or contain a slash"
        )


class Root(ABC):
    """The files below one address. Each is written atomically."""

    # The address for messages, without secrets.
    address: str

    def __init__(self, address: str) -> None:
        self.address = address

    # --- files ------------------------------------------------------------------------------------

    @abstractmethod
    def entries(self, folder: str) -> list[RootEntry]:
        """The entries of a folder; empty if it does not exist."""

    @abstractmethod
    def write(self, path: str, fill: Callable[[Any], None], *, exclusive: bool = False) -> int:
        """Write a file with the content that `fill` writes. Returns its size in bytes.

        The argument of `fill` is a seekable binary file that can also be read. When this returns,
        the file is durable. If it raises, the path has its old content, no file, or the complete
        new content. With `exclusive`, raises FileExistsError if the path exists.
        """

    @abstractmethod
    def read(self, path: str) -> Any:
        """A seekable file, open for reading. Raises FileNotFoundError."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file if it exists."""

    @abstractmethod
    def fsync(self, path: str) -> None:
        """Make an existing file durable, because its writer may have died before its own fsync."""

    @abstractmethod
    def delete_temporary(self, folder: str) -> None:
        """Delete the files of unfinished writes whose process has ended."""

    # --- meaning of the files ---------------------------------------------------------------------

    def file_path(self, stream: str, node: str, name: str) -> str:
        """The path of a file in the folder of (stream, node)."""
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

    def entries_by_node(self, stream: str) -> dict[str, list[RootEntry]]:
        """The entries of each node's folder, with a single listing if the root supports that."""
        return {node: self.entries(self.folder(stream, node)) for node in self.nodes(stream)}

    def segments(self, stream: str, node: str) -> list[Segment]:
        """All segments that are not trimmed, including covered ones, sorted by range."""
        entries = self.entries(self.folder(stream, node))
        trimmed = trimmed_in(entries)
        return [each for each in segments_in(entries) if each.last > trimmed]

    def delete_trimmed(self, stream: str, node: str) -> None:
        """Delete the files of trimmed segments."""
        entries = self.entries(self.folder(stream, node))
        trimmed = trimmed_in(entries)
        for segment in segments_in(entries):
            if segment.last <= trimmed:
                self.delete(self.file_path(stream, node, segment.name))

    def highest_seq(self, stream: str, node: str) -> int:
        """The highest seq that has ever been sealed here; 0: none."""
        entries = self.entries(self.folder(stream, node))
        return max([trimmed_in(entries), *(each.last for each in segments_in(entries))])

    def trimmed(self, stream: str, node: str) -> int:
        """The seq up to which rows have been deleted; 0: none."""
        return trimmed_in(self.entries(self.folder(stream, node)))

    def set_trimmed(self, stream: str, node: str, through: int) -> None:
        """Record that rows up to `through` are deleted. Call it before deleting them."""
        before = self.entries(self.folder(stream, node))
        if through <= trimmed_in(before):
            return
        name = f"_trimmed-{through:020}.json"
        self._write_note(self.file_path(stream, node, name), {"trimmed": through})
        for entry in before:
            if _trimmed_by(entry) is not None:
                self.delete(self.file_path(stream, node, entry.name))

    def owner(self, stream: str, node: str) -> str | None:
        """The id of the store that owns the folder; None: no owner is recorded."""
        return next(iter(self.owners(stream, node)), None)

    def owners(self, stream: str, node: str) -> list[str]:
        """The owner, followed by the previous owners, whose seqs it continues."""
        path = self.file_path(stream, node, OWNER)
        try:
            with self.read(path) as file:
                note = json.loads(bytes(file.read()))
        except FileNotFoundError:
            return []
        except ValueError as problem:
            raise RootError(f"{self.address}: {path} is damaged: {problem}") from problem
        if not isinstance(note, dict) or not isinstance(note.get("store"), str):
            raise RootError(f"{self.address}: {path} is damaged: it does not name a store")
        before = note.get("before")
        return [note["store"], *map(str, before if isinstance(before, list) else [])]

    def claim(self, stream: str, node: str, store: str, *, adopt: bool = False) -> None:
        """Make a store the owner of the folder of (stream, node). Raises NotOwned.

        With `adopt` the folder is taken over from another owner, or if it has segments but no
        recorded owner. On an object store, if two stores claim a folder at the same moment, the
        loser may notice it only when it claims again, because pyarrow has no conditional PUT.
        """
        path = self.file_path(stream, node, OWNER)
        before = self.owners(stream, node)
        owner = before[0] if before else None
        if owner == store:
            return
        where = f"{self.address}: the folder of stream {stream}, node {node}"
        advice = "give this broker a node name of its own (--node)"
        if owner is None and self.segments(stream, node) and not adopt:
            raise NotOwned(f"{where} has segments but no recorded owner: {advice}")
        if owner is not None and not adopt:
            raise NotOwned(f"{where} belongs to store {owner}, not to {store}: {advice}")
        with suppress(FileExistsError):
            note = {"store": store, **({"before": before} if before else {})}
            self._write_note(path, note, exclusive=owner is None)
        owner = self.owner(stream, node)
        if owner != store:
            raise NotOwned(f"{where} belongs to store {owner}, not to {store}: {advice}")

    def _write_note(self, path: str, note: dict[str, Any], *, exclusive: bool = False) -> None:
        data = json.dumps(note).encode() + b"\n"

        def fill(sink: Any) -> None:
            sink.write(data)

        self.write(path, fill, exclusive=exclusive)


def segments_in(entries: list[RootEntry]) -> list[Segment]:
    """The segments among the entries of a folder, sorted by range."""
    found = []
    for entry in entries:
        limits = None if entry.is_folder else parse_segment_name(entry.name)
        if limits is not None:
            found.append(Segment(*limits, entry.size, entry.modified))
    return sorted(found, key=lambda each: each.range)


def trimmed_in(entries: list[RootEntry]) -> int:
    """The seq up to which rows have been deleted, from the entries of a folder; 0: none."""
    return max((_trimmed_by(entry) or 0 for entry in entries), default=0)


def _trimmed_by(entry: RootEntry) -> int | None:
    match = None if entry.is_folder else _TRIMMED.fullmatch(entry.name)
    return min(int(match[1]), MAXIMUM_SEQ) if match else None


def _folders(entries: list[RootEntry]) -> list[str]:
    return sorted(
        entry.name for entry in entries if entry.is_folder and not entry.name.startswith((".", "_"))
    )


class LocalRoot(Root):
    """A root in a local folder. Needs no optional package."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path.absolute()
        # Folders that this object has synced, together with all folders above them.
        self._synced_folders: set[Path] = set()

    def entries(self, folder: str) -> list[RootEntry]:
        found = []
        try:
            with os.scandir(self._path / folder) as entries:
                for entry in entries:
                    # Skip a file that was deleted meanwhile.
                    with suppress(FileNotFoundError):
                        status = entry.stat()
                        found.append(
                            RootEntry(entry.name, entry.is_dir(), status.st_size, status.st_mtime)
                        )
        except FileNotFoundError:
            return []
        return found

    def write(self, path: str, fill: Callable[[Any], None], *, exclusive: bool = False) -> int:
        target = self._path / path
        self._make_folder(target.parent)
        temporary, descriptor = create_temporary(target)
        with open(descriptor, "w+b") as file:
            try:
                fill(file)
                file.flush()
                os.fsync(descriptor)
                size = os.fstat(descriptor).st_size
                if exclusive:
                    _rename_exclusively(temporary, target)
                else:
                    temporary.rename(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        _sync_folder(target.parent)
        return size

    def read(self, path: str) -> Any:
        return open(self._path / path, "rb", buffering=0)

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            (self._path / path).unlink()

    def fsync(self, path: str) -> None:
        target = self._path / path
        self._make_folder(target.parent)
        descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _sync_folder(target.parent)

    def delete_temporary(self, folder: str) -> None:
        for entry in self.entries(folder):
            if entry.name.startswith(TEMPORARY) and not entry.is_folder:
                delete_unlocked(self._path / folder / entry.name)

    def _make_folder(self, folder: Path) -> None:
        """Create a folder and its parents, durably.

        Existing folders below the root are also synced, once, because the process that created
        them may have died before its fsync. Folders above the root belong to the user, and are
        synced only if they are created here.
        """
        if folder in self._synced_folders:
            return
        is_below = folder != self._path and folder.is_relative_to(self._path)
        if is_below or not folder.parent.is_dir():
            self._make_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        _sync_folder(folder.parent)
        self._synced_folders.add(folder)


def _rename_exclusively(temporary: Path, target: Path) -> None:
    """Rename a file, or raise FileExistsError if the target exists."""
    try:
        # Unlike rename, link does not replace an existing file.
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:
        # The file system has no hard links: check first.
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
    """A root in an object store, through pyarrow. A PUT of its final name creates a file."""

    def __init__(
        self, filesystem: Any, path: str, address: str, *, bucket: str | None = None
    ) -> None:
        """`filesystem` is a pyarrow.fs.FileSystem; `bucket`, if given, must exist."""
        super().__init__(address)
        self._bucket = bucket
        self._filesystem = filesystem
        self._path = path.rstrip("/")
        self._fs = need("pyarrow.fs", extra="broker", by="a root on an object store")

    def _full(self, path: str) -> str:
        return f"{self._path}/{path}".strip("/")

    def entries(self, folder: str) -> list[RootEntry]:
        selector = self._fs.FileSelector(self._full(folder), allow_not_found=True)
        found = []
        for info in self._filesystem.get_file_info(selector):
            if info.type == self._fs.FileType.NotFound:
                continue
            is_folder = info.type == self._fs.FileType.Directory
            modified = 0.0 if info.mtime_ns is None else info.mtime_ns / 1e9
            found.append(RootEntry(info.base_name, is_folder, info.size or 0, modified))
        if not found:
            self._check_bucket()
        return found

    def entries_by_node(self, stream: str) -> dict[str, list[RootEntry]]:
        check_folder_name("stream", stream)
        above = self._full(stream)
        # Recursive, because one request lists a thousand files, however many nodes there are.
        selector = self._fs.FileSelector(above, allow_not_found=True, recursive=True)
        found: dict[str, list[RootEntry]] = {}
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
                found.setdefault(node, []).append(RootEntry(name, False, info.size or 0, modified))
        if not found:
            self._check_bucket()
        return dict(sorted(found.items()))

    def _check_bucket(self) -> None:
        """Check that the bucket exists, because an empty listing would hide a typo.

        Raises OSError.
        """
        bucket = self._bucket
        if bucket is None:
            return
        if self._filesystem.get_file_info(bucket).type == self._fs.FileType.NotFound:
            raise OSError(f"{self.address}: there is no bucket {bucket}")
        self._bucket = None  # Checked once.

    def write(self, path: str, fill: Callable[[Any], None], *, exclusive: bool = False) -> int:
        full = self._full(path)
        if exclusive and self._size(full) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        # Write a local file first, because closing a pyarrow stream uploads what it has, even after
        # an error. So the stream is opened when only the network can still fail.
        with tempfile.TemporaryFile() as spool:
            fill(spool)
            spool.flush()
            size = os.fstat(spool.fileno()).st_size
            try:
                with mmap.mmap(spool.fileno(), size, access=mmap.ACCESS_READ) as data:
                    self._put(full, data)
                stored = self._size(full)
                if stored != size:
                    raise OSError(
                        f"{self.address}: {path} was written with {count(size, 'byte')}, but has"
                        f" {stored}"
                    )
            except OSError:
                # Delete an incomplete file.
                with suppress(OSError):
                    if self._size(full) not in (None, size):
                        self._filesystem.delete_file(full)
                raise
        return size

    def _put(self, full: str, data: Any) -> None:
        with self._filesystem.open_output_stream(full) as stream:
            # One call, so that an error in our code cannot leave half a file.
            stream.write(data)

    def _size(self, full: str) -> int | None:
        info = self._filesystem.get_file_info(full)
        return info.size if info.type == self._fs.FileType.File else None

    def read(self, path: str) -> Any:
        return self._filesystem.open_input_file(self._full(path))

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(self._full(path))

    def fsync(self, path: str) -> None:
        return  # A completed PUT is durable.

    def delete_temporary(self, folder: str) -> None:
        return  # An incomplete PUT leaves no file.


_AMBIGUOUS_SECRET: Final = (
    "the end of the secret is ambiguous: write /, @, ? and # in a key or secret as %2F, %40, %3F "
    "and %23, and @ in a path or an option as %40"
)
_INVALID_CHARACTER: Final = (
    "it has a character before its path that an address cannot have: write special characters of a "
    "key or secret as % and two hexadecimal digits, / as %2F"
)
_NO_SLASHES: Final = "it has no ://: write {}, or begin it with ./ if it is a folder"
_MAYBE_SECRET: Final = (
    "it may contain a secret: write an address as s3://key:secret@bucket/folder, or begin it with "
    "./ if it is a folder"
)
# The likely intention, by the start of the scheme.
_INTENDED: Final = {
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
    """An address for messages: without user, password and options. Never raises.

    From an invalid address it removes everything that may be part of a secret.
    """
    return _redact(address)[0]


def _redact(address: str) -> tuple[str, str | None]:
    """An address without secrets, and why it is ambiguous or invalid, or None.

    A secret is between a `:` and an `@`. It may extend to the last @ before the options, across a /
    that should be %2F. An @ without a : before it is part of a path and follows no secret.
    """
    match = _SCHEME.match(address)
    if match is None:
        return _redact_path(address)
    scheme = match[0].lower()
    location, options = _split_options(address, match)
    if scheme == "file://" and location.startswith("/"):
        return scheme + location, None
    authority, slash, path = location.partition("/")
    user, _, host = authority.rpartition("@")
    before, _, after = location.rpartition("@")
    may_have_secret = _has_colon(before)
    if "@" in options and (may_have_secret or (":" in host and not user)):
        return f"{scheme}…", _AMBIGUOUS_SECRET
    if may_have_secret and before != user:
        return scheme + after, _AMBIGUOUS_SECRET
    if not may_have_secret and not _HOST.fullmatch(host):
        example = _KEYS["abfs" if scheme.startswith("abfs") else "s3"]
        return f"{scheme}…", f"write a key and its secret before an @, as in {example}"
    return scheme + host + slash + path, None


def _redact_path(path: str) -> tuple[str, str | None]:
    """A path without secrets, and why it may be a misspelled address, or None."""
    match = _MISSPELLED.match(path)
    if match is not None:
        scheme = match[1].lower()
        intended = next(text for start, text in _INTENDED.items() if scheme.startswith(start))
        return f"{scheme}:…", _NO_SLASHES.format(intended)
    if _MAY_HAVE_SECRET.match(path):
        return "…", _MAYBE_SECRET
    return path, None


def check_path(path: str) -> None:
    """Check that a path is not a misspelled address. Raises RootError, which shows no secret."""
    shown, problem = _redact_path(path)
    if problem is not None:
        raise RootError(f"{shown}: {problem}")


def _split_options(address: str, scheme: re.Match[str]) -> tuple[str, str]:
    """The location and the options of an address, which follow its scheme."""
    rest = _BREAKS.sub("", address[scheme.end() :])
    location, *options = re.split(r"[?#]", rest, maxsplit=1)
    return location, "".join(options)


def _has_colon(text: str) -> bool:
    return ":" in text or "%3a" in text.lower()


def read_address(address: str) -> SplitResult:
    """The parts of an address with a scheme. Raises RootError, which shows no secret.

    Refuses an address whose secret is ambiguous, because half of the secret would be used as the
    name of the bucket, and appear in messages. Also refuses what pyarrow would ignore, or what
    would crash it.
    """
    shown, problem = _redact(address)
    try:
        parts = urlsplit(address)
    except ValueError:
        # The message of the ValueError shows the invalid part, which may be secret.
        raise RootError(f"{shown}: {problem or _INVALID_CHARACTER}") from None
    scheme = parts.scheme.lower()
    if scheme not in OBJECT_STORES:
        return parts
    if problem is not None:
        raise RootError(f"{shown}: {problem}")
    if _BREAKS.search(address):
        # urlsplit removes these characters, but pyarrow does not.
        raise RootError(f"{shown}: the address has a tab or a line break: remove it")
    user, _, host = parts.netloc.rpartition("@")
    if not _USER.fullmatch(user):
        raise RootError(f"{shown}: {_INVALID_CHARACTER}")
    if "[" in host:
        raise RootError(f"{shown}: name a server by its host name or IPv4 address, without [ and ]")
    if ":" in host and not scheme.startswith("abfs"):
        raise RootError(
            f"{shown}: a bucket has no port: name a server with the option "
            "endpoint_override=host:port"
        )
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        # The part of a value after an unescaped & would appear in messages as an option's name.
        if not _OPTION.fullmatch(name):
            raise RootError(
                f"{shown}: write options as ?name=value&name=value, with lowercase names and & in "
                "a value as %26"
            )
        if name == "endpoint_override" and "@" in value:
            raise RootError(
                f"{shown}: option 'endpoint_override' of the address is host:port, without a key: "
                f"write the key before the bucket, as in {_KEYS['s3']}"
            )
    return parts


def open_root(address: str | Path) -> Root:
    """The root at an address: a folder, file://, or an object store (s3://, gs://, abfs://).

    Raises RootError for an invalid address. A folder is not checked here. An object store is not
    contacted, unless pyarrow needs information from it, such as the region of a bucket.
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
            raise RootError(f"{shown} is not a local folder: write file:///folder")
        return LocalRoot(Path(unquote(parts.path)))
    if scheme not in OBJECT_STORES:
        known = ", ".join(f"{each}://" for each in ("file", *OBJECT_STORES))
        raise RootError(f"{shown} is not a root: give a folder or one of {known}")
    fs = need("pyarrow.fs", extra="broker", by=f"the root {shown}")
    try:
        filesystem, path = fs.FileSystem.from_uri(address)
    except (OSError, ValueError) as problem:
        reason = _redacted_reason(str(problem), address, parts)
        # Not `from problem`: a traceback would show the secret.
        raise RootError(f"the root {shown} cannot be opened: {reason}") from None
    if not path:
        raise RootError(f"{shown} does not name a bucket")
    return ObjectRoot(filesystem, path, shown, bucket=path.partition("/")[0])


def _redacted_reason(text: str, address: str, parts: SplitResult) -> str:
    """pyarrow's message in one line, or a generic one if it shows the address or its secret."""
    secret = parts.netloc.rpartition("@")[0].partition(":")[2]
    # Secrets have at least eight characters; a shorter text may be part of many words.
    hidden = (address, *(each for each in (secret, unquote(secret)) if len(each) >= 8))
    if any(each in text for each in hidden):
        return (
            "the address is invalid: in names and options, write all characters but letters, "
            "digits and - . _ ~ as % and two hexadecimal digits"
        )
    return " ".join(text.split())
