"""The server: it takes connections, routes messages and keeps what sessions are owed."""
