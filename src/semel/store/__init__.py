"""Durable storage: SQLite for the current state, Parquet segments for the record. No sockets."""
