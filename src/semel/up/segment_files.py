"""The segments of a root as a pyarrow file system, for datasets; every read checks checksums.

A path is `<stream>/<node>/<name>`. If a file is damaged, the sentence that says so is kept in
`damage`: DuckDB, which reads the dataset, replaces the exception by its own message.
"""

from typing import Any

import pyarrow as pa
import pyarrow.fs

from semel.store.roots import Root
from semel.store.segment_checksums import CheckedFile
from semel.store.segment_names import parse_segment_name
from semel.store.segments import RecordError, check_segment, open_checked


class SegmentFiles(pyarrow.fs.FileSystemHandler):  # type: ignore[misc]
    """Opens segments by path. A dataset with a given list of files needs no other method."""

    def __init__(self, root: Root) -> None:
        self.root = root
        # A string, because an exception would keep the file open.
        self.damage: str | None = None

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return "segments"

    def normalize_path(self, path: str) -> str:
        return path

    def open_input_file(self, path: str) -> Any:
        stream, node, name = path.split("/")
        limits = parse_segment_name(name)
        assert limits is not None
        first, last = limits
        try:
            file = open_checked(self.root, stream, node, first=first, last=last)
            if not file.has_checksums:
                # The footer tells whether an earlier version wrote it, or its checksums were lost.
                check_segment(self.root, stream, node, first=first, last=last)
        except RecordError as problem:
            self.damage = str(problem)
            raise
        return pa.PythonFile(_DamageReportingFile(file, self), mode="r")

    def _refuse(self, *_: object) -> Any:
        raise NotImplementedError("segments can only be opened, by name")

    get_file_info = get_file_info_selector = open_input_stream = _refuse
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse


class _DamageReportingFile:
    """A file that reports its damage to its file system."""

    def __init__(self, file: CheckedFile, owner: SegmentFiles) -> None:
        self._file = file
        self._owner = owner
        self.seek = file.seek
        self.tell = file.tell
        self.close = file.close

    def __del__(self) -> None:
        # A dataset does not close its files.
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def read(self, size: int = -1) -> bytes | memoryview:
        try:
            return self._file.read(size)
        except RecordError as problem:
            self._owner.damage = str(problem)
            raise
