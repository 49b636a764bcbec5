"""Examines and repairs the files of a damaged store, for the command `semel store` only.

    check       checks every page, every row, and the relations between rows; reads only
    log_frames  which frames of the write-ahead log are intact
    pages       the rows of a SQLite file, read page by page without SQLite
    repair      makes a new store from every intact row, and lists what is lost
    salvage     exports every row that can be read

SQLite's own tools do not suffice for a broker, because messages that it has acknowledged must not
vanish silently:

- SQLite stops at the first damaged page. Its `.recover` continues, but it is a command of the
  sqlite3 shell, not part of the library that Python uses. Neither it nor `PRAGMA integrity_check`
  can detect that a row differs from what was written, because SQLite has no checksums of rows. Our
  rows have checksums, so a repair keeps a row only if it is intact.
- SQLite ignores the log from its first broken frame on, without an error, and so loses acknowledged
  commits. A repair uses all complete commits of the log, and checks each row.
- `.recover` puts rows whose table it does not know into a table `lost_and_found`. Here the columns
  and the checksum of a row identify its table.
- A repair must report which sessions and which rows of streams are lost, and record the gaps, so
  that seqs are never assigned twice.

`PRAGMA integrity_check` checks structure and order of pages; nothing here repeats that. No other
module imports this package (tests/test_imports.py), because a running broker does not need it. What
a broker needs to open a store is in `wal`, `mark` and `row_check`, which this package uses.
"""
