"""Takes rights away and gives them back, at a moment at which that matters.

A change affects the messages, subscriptions and topics that a client has to do with: what was
published or routed last, what it has subscribed to. Sometimes the client loses its connection
first, so that the broker applies the change to what is queued and in flight; sometimes a publisher
repeats a message after the change, because the broker has cached its first decision.
"""

from typing import TYPE_CHECKING

from tests.simulation.rights import PUBLISH, RECEIVE, SUBSCRIBE, user_of
from tests.simulation.schedule import FILTERS, PUBLISHER, TOPICS, WORKER, Action

if TYPE_CHECKING:
    from tests.simulation.client import Client
    from tests.simulation.world import World


class RightChanges:
    """Changes the rights of a world."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def change(self, client: "Client", a: int, b: int) -> None:
        """Take away a right of a client, or give one back."""
        facts = self._world.ledger.sessions.get(client.name)
        user = user_of(client.name, is_other=a % 4 == 0)
        if facts is not None and a % 4 > 1:
            user = facts.user
        denied = sorted(right for right in self._world.rights.denied if right[0] == user)
        if denied and b % 2:
            _, action, name = denied[a % len(denied)]
            self.set_right(user, action, name, is_allowed=True)
        elif client.part.role == PUBLISHER or a // 4 % 6 == 0:
            self._stop_publishing(client, user, a, b)
        elif a // 4 % 6 < 3:
            names = sorted(client.wanted) or [FILTERS[0]]
            self.set_right(user, SUBSCRIBE, names[b // 2 % len(names)], is_allowed=False)
        else:
            self._stop_receiving(client, user, b, way=(0, 0, 0, 1, 1, 2, 3, 4)[b // 64 % 8])

    def give_back(self) -> None:
        """Everybody may connect again; in some worlds everybody may do everything again."""
        for user, action, name in sorted(self._world.rights.denied):
            if self._world.plan.seed % 2 or (action == PUBLISH and name.startswith("w/")):
                self.set_right(user, action, name, is_allowed=True)

    def _stop_publishing(self, client: "Client", user: str, a: int, b: int) -> None:
        """A client may not publish its will any more, or what it has published last."""
        if b // 2 % 4 == 0:
            self.set_right(user, PUBLISH, f"w/{client.name}", is_allowed=False)
            return
        repeats = b // 8 % 2 == 1
        if repeats:
            self._world.connect_all()
            self._world.traffic.publish(client, a, b)
            self._world.step()
        topics = [sent.topic for sent in client.published[-1:]] or [TOPICS[0]]
        self.set_right(user, PUBLISH, topics[0], is_allowed=False)
        if repeats:
            self._world.traffic.publish(client, a, b)
            self._world.step()

    def _stop_receiving(self, client: "Client", user: str, b: int, *, way: int) -> None:
        """A client may not receive a topic any more, in one of these situations.

        0: whatever it does. 1: it has lost its connection; messages are in flight and queued. 2: it
        loses its connection later. 3: its acknowledgement was lost; later the broker restarts, and
        the right is given back. 4: it has no subscriptions any more, and returns as another user.
        """
        world = self._world
        if way:
            world.connect_all()
            self._send(1)
        if way == 3:
            world.act(Action("down", world.clients.index(client), 0, 0))
        if way in (1, 3, 4):
            world.lose_connection(client)
        if way in (1, 4):
            self._send(3)
        names = self._topics_for(client) or [*TOPICS]
        topic = names[b // 2 % len(names)]
        if way == 4:
            for topic_filter in sorted(client.wanted):
                self.set_right(user, SUBSCRIBE, topic_filter, is_allowed=False)
            is_other = user == client.name
            user = user_of(client.name, is_other=is_other)
            self.set_right(user, RECEIVE, topic, is_allowed=False)
            world.tick()
            world.connect(world.clients.index(client), clean=False, is_other=is_other)
            return
        self.set_right(user, RECEIVE, topic, is_allowed=False)
        if b // 512 % 2:
            world.tick()
        if way == 2:
            world.tick()
            world.lose_connection(client)
        elif way == 3:
            world.commit_all()
            world.crash(0, 1)
            self.set_right(user, RECEIVE, topic, is_allowed=True)
            world.connect_all()
            self._send(2)

    def _send(self, count: int) -> None:
        """The first client publishes; nobody reads."""
        for _ in range(count):
            # QoS 2, topic `a`, small, not retained, without expiry.
            self._world.traffic.publish(self._world.clients[0], 0, 530)
            self._world.commit_all()

    def _topics_for(self, client: "Client") -> list[str]:
        """The topics of the last few messages that a client has to get, or has got."""
        ledger = self._world.ledger
        facts = ledger.sessions.get(client.name)
        expected = [] if facts is None else ledger.expected.get(facts.epoch, [])
        if client.part.role == WORKER:
            expected = ledger.shared
        return [ledger.accepted[index].topic for index, _ in expected[-3:]]

    def set_right(self, user: str, action: str, name: str, *, is_allowed: bool) -> None:
        """Give a user a right, or take it away."""
        world = self._world
        verb = "may" if is_allowed else "may not"
        world.add_trace(f"    {user} {verb} {action} {name} from now on")
        world.tally["rights given" if is_allowed else "rights taken"] += 1
        world.ledger.observe_rights()
        world.rights.change(user, action, name, is_allowed=is_allowed)
        world.ledger.observe_rights()
        world.variant.rights_changed(world.authority, world.rights)
