"""Listeners and transports: TCP, TLS, WebSocket, Unix sockets, the PROXY protocol."""
