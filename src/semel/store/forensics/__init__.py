"""Examining and repairing the files of a damaged store. For the command `semel store` only.

    check       is every page, row and relation between rows what it should be? Reads only.
    log_frames  which frames of the write-ahead log are intact
    pages       the rows of a SQLite file, read page by page without SQLite
    repair      a new store from every row that is intact, and a list of what is lost
    salvage     every row that can be read, for an export

SQLite's own tools leave a gap that a broker cannot accept, because what it has acknowledged must
not vanish silently:

- SQLite stops at the first damaged page. Its `.recover` goes on, but it is a command of the sqlite3
  shell, not part of the library that Python has; and neither it nor `PRAGMA integrity_check` can
  tell that a row differs from what was written, since SQLite has no checksums of rows. Ours have
  them, so a repair keeps a row only if it is intact.
- SQLite ignores the log from its first broken frame on, without an error, and so loses acknowledged
  commits. A repair uses all complete commits of the log, and checks each row.
- `.recover` puts rows whose table it does not know into a table `lost_and_found`. Here the columns
  and the checksum of a row identify its table.
- A repair has to say which sessions and which rows of streams are lost, and to record the gaps, so
  that seqs are never assigned twice.

Structure and order of pages are checked by `PRAGMA integrity_check`; nothing here repeats that.

No other module imports this package (tests/test_imports.py): a running broker needs none of it.
What it needs to open a store is in `wal`, `mark` and `row_check`, which this package uses.
"""
