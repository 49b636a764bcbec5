"""The server: accepts connections, routes messages, and queues them for sessions."""
