"""A root in memory, with a clock and a hook, and an object store that fails on command."""

import io
from collections.abc import Callable
from typing import Any

from semel.extras import need
from semel.store.roots import ObjectRoot, Root, RootEntry

pa = need("pyarrow", extra="broker", by="this test")
fs = need("pyarrow.fs", extra="broker", by="this test")


class MemoryRoot(Root):
    """Each call of `hook` is a moment at which somebody else may look."""

    def __init__(self) -> None:
        super().__init__("memory")
        self.files: dict[str, tuple[bytes, float]] = {}
        self.now = 1_000_000.0
        self.hook: Callable[[str, str], None] = lambda what, path: None

    def copy(self) -> "MemoryRoot":
        """The files as they are now, without the hook."""
        twin = MemoryRoot()
        twin.files = dict(self.files)
        twin.now = self.now
        return twin

    def entries(self, folder: str) -> list[RootEntry]:
        self.hook("list", folder)
        prefix = f"{folder}/" if folder else ""
        found: dict[str, RootEntry] = {}
        for path, (data, modified) in self.files.items():
            if path.startswith(prefix):
                name, slash, _ = path[len(prefix) :].partition("/")
                found[name] = (
                    RootEntry(name, True, 0, 0.0)
                    if slash
                    else RootEntry(name, False, len(data), modified)
                )
        return list(found.values())

    def write(self, path: str, fill: Callable[[Any], None], *, exclusive: bool = False) -> int:
        sink = io.BytesIO()
        fill(sink)
        data = sink.getvalue()
        if exclusive and path in self.files:
            raise FileExistsError(path)
        self.hook("write", path)
        self.files[path] = (data, self.now)
        self.hook("written", path)
        return len(data)

    def read(self, path: str) -> Any:
        self.hook("read", path)
        if path not in self.files:
            raise FileNotFoundError(path)
        return io.BytesIO(self.files[path][0])

    def delete(self, path: str) -> None:
        self.hook("delete", path)
        self.files.pop(path, None)
        self.hook("deleted", path)

    def fsync(self, path: str) -> None:
        self.hook("fsync", path)

    def delete_temporary(self, folder: str) -> None:
        self.hook("clean", folder)


class ObjectStore(fs.FileSystemHandler):  # type: ignore[misc, name-defined]
    """Objects by name. They appear whole when their upload is closed; there is no rename.

    `trouble` is called before each step with its name ("get", "list", "put", "close", "delete")
    and the path: it may raise, or wait. `lose`: bytes that a PUT forgets at its end.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.trouble: Callable[[str, str], None] = lambda step, path: None
        self.lose = 0
        self.puts: list[str] = []

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return "object-store"

    def normalize_path(self, path: str) -> str:
        return path

    def _info(self, path: str) -> Any:
        if path in self.objects:
            size = len(self.objects[path])
            return fs.FileInfo(path, fs.FileType.File, size=size, mtime=1_000_000.0)
        if any(name.startswith(f"{path}/") for name in self.objects):
            return fs.FileInfo(path, fs.FileType.Directory)
        return fs.FileInfo(path, fs.FileType.NotFound)

    def get_file_info(self, paths: list[str]) -> list[Any]:
        for path in paths:
            self.trouble("get", path)
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        self.trouble("list", selector.base_dir)
        prefix = f"{selector.base_dir}/"
        names = set()
        for path in self.objects:
            if path.startswith(prefix):
                parts = path[len(prefix) :].split("/")
                levels = len(parts) if selector.recursive else 1
                names |= {prefix + "/".join(parts[: level + 1]) for level in range(levels)}
        if not names and not selector.allow_not_found:
            raise FileNotFoundError(selector.base_dir)
        return [self._info(name) for name in sorted(names)]

    def delete_file(self, path: str) -> None:
        self.trouble("delete", path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        del self.objects[path]

    def open_input_file(self, path: str) -> Any:
        self.trouble("get", path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return pa.PythonFile(io.BytesIO(self.objects[path]), mode="r")

    open_input_stream = open_input_file

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self.trouble("put", path)
        return pa.PythonFile(_Upload(self, path), mode="w")

    def _refuse(self, *_: object) -> Any:
        raise NotImplementedError("an object store cannot do that")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    move = copy_file = open_append_stream = _refuse


class _Upload(io.BytesIO):
    def __init__(self, store: ObjectStore, path: str) -> None:
        super().__init__()
        self._store = store
        self._path = path

    def close(self) -> None:
        if self.closed:
            return
        data = self.getvalue()
        super().close()
        self._store.trouble("close", self._path)
        self._store.puts.append(self._path)
        self._store.objects[self._path] = data[: len(data) - self._store.lose]


def object_root(store: ObjectStore) -> ObjectRoot:
    """A root on such a store."""
    return ObjectRoot(fs.PyFileSystem(store), "bucket/record", "store://bucket/record")
