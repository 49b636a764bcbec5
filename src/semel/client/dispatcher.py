"""Delivers received messages to the listeners of a program.

A message goes to every listener of a filter that it matched. If there is none, it waits for one
while the filter is requested. Otherwise it is acknowledged unread [MQTT-4.5.0-2], so that it does
not delay the acknowledgements of later ones.
"""

from collections import deque
from collections.abc import Container
from typing import Final

from semel.client.messages import Channel, MessageListener
from semel.client.received import Incoming, Received

# The maximum number of bytes of messages that the program has not taken. Above it nothing is read
# from the server, unless the program awaits an answer: then QoS 0 messages are dropped.
MAXIMUM_BACKLOG: Final = 16 * 1024 * 1024
# The approximate memory of a message besides topic and payload.
MESSAGE_BYTES: Final = 200


class MessageDispatcher:
    """The dispatcher of one client. `requested_filters` are those its program subscribes to."""

    def __init__(self, requested_filters: Container[str]) -> None:
        self.requested_filters = requested_filters
        # The listeners of each filter, and those for messages that match none of them.
        self.listeners: dict[str, list[MessageListener]] = {}
        self.default_channels: list[Channel] = []
        # Messages received, and those dropped because no listener wanted them or had room.
        self.received = 0
        self.dropped = 0
        self._unclaimed: deque[Incoming] = deque()
        self._backlog = 0

    @property
    def is_behind(self) -> bool:
        """Whether too many messages wait for the program."""
        return self._backlog > MAXIMUM_BACKLOG

    def all_listeners(self) -> set[MessageListener]:
        """Every listener, once."""
        default: set[MessageListener] = set(self.default_channels)
        return default.union(*self.listeners.values())

    def add(self, listener: MessageListener) -> None:
        """Add a listener to its filters."""
        for topic_filter in listener.subscriptions:
            self.listeners.setdefault(topic_filter, []).append(listener)
        self._redispatch_unclaimed()

    def add_default(self, channel: Channel) -> None:
        """Add a channel for messages that no other listener gets."""
        self.default_channels.append(channel)
        self._redispatch_unclaimed()

    def remove(self, listener: MessageListener) -> list[str]:
        """Remove a listener. Returns the filters that have no listener now."""
        if isinstance(listener, Channel) and listener in self.default_channels:
            self.default_channels.remove(listener)
        unowned = []
        for topic_filter in listener.subscriptions:
            listeners = self.listeners.get(topic_filter, [])
            if listener in listeners:
                listeners.remove(listener)
                if not listeners:
                    del self.listeners[topic_filter]
                    unowned.append(topic_filter)
        return unowned

    def return_unfinished(self, channel: Channel) -> None:
        """Give the message that the program did not finish to another listener."""
        last, channel.last = channel.last, None
        incoming = None if last is None else last.give_back()
        if incoming is not None:
            incoming.is_unfinished = True
            self.dispatch(incoming)

    def return_undelivered(self, channel: Channel) -> None:
        """End an iteration, and give its queue to other listeners."""
        for received in channel.end():
            self.on_taken(received)
            incoming = received.give_back()
            if incoming is not None:
                self.dispatch(incoming)

    def clear(self) -> None:
        """The client is closed: remove all listeners and messages."""
        for listener in self.all_listeners():
            listener.close()
        self.listeners.clear()
        self.default_channels.clear()
        self._unclaimed.clear()
        self._backlog = 0

    def on_taken(self, received: Received) -> None:
        """The program has taken a message from its queue."""
        self._backlog -= len(received.payload) + len(received.topic) + MESSAGE_BYTES

    def on_arrived(self, messages: list[Incoming], *, may_drop: bool) -> None:
        """Deliver new messages; if `may_drop`, drop QoS 0 messages while the program is behind."""
        self.received += len(messages)
        for incoming in messages:
            self.dispatch(incoming, may_drop=may_drop)

    def dispatch(self, incoming: Incoming, *, may_drop: bool = False) -> None:
        """Deliver a message to its listeners."""
        targets: list[MessageListener] = []
        is_requested = incoming.is_unfinished
        for topic_filter in incoming.filters:
            is_requested = is_requested or topic_filter in self.requested_filters
            for listener in self.listeners.get(topic_filter, ()):
                if listener not in targets:
                    targets.append(listener)
        if not targets and self.default_channels:
            targets.append(self.default_channels[0])
        size = len(incoming.payload) + len(incoming.topic) + MESSAGE_BYTES
        if not targets and is_requested and (incoming.qos or not self.is_behind):
            self._backlog += size
            self._unclaimed.append(incoming)
            return
        if may_drop and incoming.qos == 0 and self.is_behind:
            # Responses to requests are not queued, and need no room.
            targets = [each for each in targets if not isinstance(each, Channel)]
        if not targets:
            self.dropped += 1
        self._backlog += size * len(targets)
        # Until all listeners have it, one acknowledgement must not count as the last.
        incoming.holders += 1
        for listener in targets:
            listener.put(incoming)
        incoming.drop_holder()

    def _redispatch_unclaimed(self) -> None:
        """Offer unclaimed messages to a new listener."""
        for _ in range(len(self._unclaimed)):
            incoming = self._unclaimed.popleft()
            self._backlog -= len(incoming.payload) + len(incoming.topic) + MESSAGE_BYTES
            self.dispatch(incoming)
