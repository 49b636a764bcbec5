"""What lasts: SQLite for the moment, Parquet segments for the record. No sockets."""
