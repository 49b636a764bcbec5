"""Who gets which message: the parts of a program, and what waits for them.

A message goes to every part that listens to a filter by which it came. Where nobody does at the
moment, it waits, if the filter is still wanted; if it is not, it is acknowledged unread
[MQTT-4.5.0-2], so that it does not hold back those that came after it.
"""

from collections import deque
from collections.abc import Container
from typing import Final

from semel.client.messages import Channel, MessageListener
from semel.client.received import Incoming, Received

# Bytes of messages that wait for the program. Above it nothing is read from the server, unless the
# program waits for an answer itself: then QoS 0 messages are dropped.
MAXIMUM_BACKLOG: Final = 16 * 1024 * 1024
# About what a message takes beside topic and payload.
MESSAGE_BYTES: Final = 200


class Distribution:
    """Of one client. `wanted` has the filters that its program asks for."""

    def __init__(self, wanted: Container[str]) -> None:
        self.wanted = wanted
        # Who gets what comes by each filter; who gets what is for none of them.
        self.listeners: dict[str, list[MessageListener]] = {}
        self.others: list[Channel] = []
        # Messages that came, and those that nobody wanted or had room for.
        self.received = 0
        self.dropped = 0
        self._unclaimed: deque[Incoming] = deque()
        self._backlog = 0

    @property
    def is_behind(self) -> bool:
        """Whether more waits for the program than should."""
        return self._backlog > MAXIMUM_BACKLOG

    def everybody(self) -> set[MessageListener]:
        """All who listen."""
        everybody: set[MessageListener] = set(self.others)
        return everybody.union(*self.listeners.values())

    def add(self, listener: MessageListener) -> None:
        """One more who listens to its filters."""
        for topic_filter in listener.subscriptions:
            self.listeners.setdefault(topic_filter, []).append(listener)
        self._offer()

    def add_other(self, channel: Channel) -> None:
        """One more who takes what nobody else does."""
        self.others.append(channel)
        self._offer()

    def remove(self, listener: MessageListener) -> list[str]:
        """It gets no more. Filters that are nobody's now."""
        if isinstance(listener, Channel) and listener in self.others:
            self.others.remove(listener)
        unowned = []
        for topic_filter in listener.subscriptions:
            listeners = self.listeners.get(topic_filter, [])
            if listener in listeners:
                listeners.remove(listener)
                if not listeners:
                    del self.listeners[topic_filter]
                    unowned.append(topic_filter)
        return unowned

    def unfinished(self, channel: Channel) -> None:
        """The program did not finish with the message that it was at: whoever comes next may."""
        last, channel.last = channel.last, None
        incoming = None if last is None else last.give_back()
        if incoming is not None:
            incoming.is_unfinished = True
            self.dispatch(incoming)

    def take_over(self, channel: Channel) -> None:
        """Its iteration is over: what was not handed out is for others."""
        for received in channel.end():
            self.taken(received)
            incoming = received.give_back()
            if incoming is not None:
                self.dispatch(incoming)

    def clear(self) -> None:
        """The client is closed: nobody gets anything any more."""
        for listener in self.everybody():
            listener.close()
        self.listeners.clear()
        self.others.clear()
        self._unclaimed.clear()
        self._backlog = 0

    def taken(self, received: Received) -> None:
        """A message has left its queue."""
        self._backlog -= len(received.payload) + len(received.topic) + MESSAGE_BYTES

    def arrived(self, messages: list[Incoming], *, may_drop: bool) -> None:
        """Messages have come. `may_drop`: QoS 0 messages need not be kept above the bound."""
        self.received += len(messages)
        for incoming in messages:
            self.dispatch(incoming, may_drop=may_drop)

    def dispatch(self, incoming: Incoming, *, may_drop: bool = False) -> None:
        """Give a message to those who want it."""
        targets: list[MessageListener] = []
        is_wanted = incoming.is_unfinished
        for topic_filter in incoming.filters:
            is_wanted = is_wanted or topic_filter in self.wanted
            for listener in self.listeners.get(topic_filter, ()):
                if listener not in targets:
                    targets.append(listener)
        if not targets and self.others:
            targets.append(self.others[0])
        size = len(incoming.payload) + len(incoming.topic) + MESSAGE_BYTES
        if not targets and is_wanted and (incoming.qos or not self.is_behind):
            self._backlog += size
            self._unclaimed.append(incoming)
            return
        if may_drop and incoming.qos == 0 and self.is_behind:
            # An answer to a request is not kept, but taken at once.
            targets = [each for each in targets if not isinstance(each, Channel)]
        if not targets:
            self.dropped += 1
        self._backlog += size * len(targets)
        # All have it before one of them may acknowledge it.
        incoming.holders += 1
        for listener in targets:
            listener.put(incoming)
        incoming.let_go()

    def _offer(self) -> None:
        """Whoever is new may want what nobody took."""
        for _ in range(len(self._unclaimed)):
            incoming = self._unclaimed.popleft()
            self._backlog -= len(incoming.payload) + len(incoming.topic) + MESSAGE_BYTES
            self.dispatch(incoming)
