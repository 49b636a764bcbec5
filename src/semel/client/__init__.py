"""An asyncio client for MQTT 3.1.1 and 5.0, which can keep its state on disk."""

from semel.client.address import Address, BadAddress, parse_address
from semel.client.authentication import ClientAuthentication
from semel.client.client import Client
from semel.client.counters import ClientCounters
from semel.client.errors import Disconnected, Refused
from semel.client.messages import Messages
from semel.client.received import Received
from semel.client.reconnect import Backoff
from semel.client.scram import ScramAuthentication

__all__ = [
    "Address",
    "Backoff",
    "BadAddress",
    "Client",
    "ClientAuthentication",
    "ClientCounters",
    "Disconnected",
    "Messages",
    "Received",
    "Refused",
    "ScramAuthentication",
    "parse_address",
]
