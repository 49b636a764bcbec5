"""A data folder and its record, kept by the parts of a broker that keep one, step by step."""

from pathlib import Path

from semel.store.commit import Commit
from semel.store.compaction import Compaction
from semel.store.folder import open_folder
from semel.store.node_segments import NodeSegments, SealRequest
from semel.store.roots import Root, open_root
from tests.store.recorded import message, reader, received

# Seconds of the wall clock, later than all grace.
LATER = 1e11


class Keeper:
    """What broker and sealer do to one stream, when they are told to."""

    def __init__(
        self,
        data: Path,
        *,
        stream: str = "plant",
        node: str = "n1",
        root: Root | None = None,
        merge: int = 3,
    ) -> None:
        self.folder = open_folder(data)
        self.database = self.folder.open()
        self.stream = stream
        self.node = node
        self.root = open_root(self.folder.streams) if root is None else root
        self.row = self.database.stream(stream)
        self.last = self.row.last_seq
        self.connection = reader(self.folder.database)
        self.sealer = NodeSegments(
            self.connection,
            self.root,
            node=node,
            store=self.database.unique_id(),
            compaction=Compaction(files=merge, grace=60.0),
        )

    def close(self) -> None:
        """As a broker that ends."""
        self.connection.close()
        self.database.close()
        self.folder.close()

    def commit(self, rows: int) -> None:
        """So many messages come, and are safe."""
        for _ in range(rows):
            self.last += 1
            commit = Commit()
            commit.at = received(self.last) / 1e6
            commit.records.append(message(self.last, self.row.id))
            self.database.apply([commit])

    def write_segment(self, rows: int) -> None:
        """The sealer makes a segment of the next rows, and nobody has heard of it yet."""
        (row,) = (each for each in self.database.streams() if each.id == self.row.id)
        # One range is under way at a time.
        through = (
            row.sealing_seq
            if row.sealing_seq > row.sealed_seq
            else min(row.sealed_seq + rows, self.last)
        )
        if through > row.sealed_seq:
            self.database.begin_sealing(row.id, through)
            order = SealRequest(self.stream, row.id, row.sealed_seq + 1, through)
            self.sealer.seal(order, now=LATER)

    def delete_rows(self, *, all_of_them: bool = True) -> None:
        """The broker hears of it."""
        (row,) = (each for each in self.database.streams() if each.id == self.row.id)
        if row.sealing_seq > row.sealed_seq and all_of_them:
            self.database.end_sealing(row.id, row.sealing_seq)
        elif row.sealing_seq > row.sealed_seq:
            self.database.delete_sealed(row.id, row.sealing_seq)

    def seal(self, *sizes: int) -> None:
        """Segments of so many rows each."""
        for rows in sizes:
            self.write_segment(rows)
            self.delete_rows()

    def merge(self) -> bool:
        """Merge some segments, if there are enough."""
        return self.sealer.compact(self.stream)

    def tidy(self) -> None:
        """Delete what is covered, long after it was."""
        self.sealer.clean_up(self.stream, now=LATER)

    def names(self) -> list[str]:
        """The ranges of the files that are there."""
        return [f"{each.first}-{each.last}" for each in self.root.segments(self.stream, self.node)]
