"""What is due is due, whether or not a sweep has come."""

from semel.mqtt import Disconnect, Properties, Publish, Will
from tests.broker.world import World

KEPT = Properties(session_expiry_interval=10)


def test_a_session_that_has_expired_is_not_resumed_before_a_sweep() -> None:
    """[MQTT-4.1.0-2]"""
    world = World()
    world.connect("a", properties=KEPT).send(Disconnect())
    world.now += 9.0
    world.connect("a", clean_start=False, properties=KEPT, present=True).send(Disconnect())
    world.now += 11.0
    world.connect("a", clean_start=False, properties=KEPT, present=False)


def test_a_will_that_is_due_is_published_before_its_session_is_resumed() -> None:
    """[3.1.3.2.2] the delay has passed, so the new connection comes too late"""
    world = World()
    watcher = world.connect("watcher")
    watcher.subscribe("will")
    delayed = Properties(will_delay_interval=5)
    client = world.connect("a", properties=KEPT, will=Will("will", b"x", properties=delayed))
    client.cut()
    world.now += 6.0
    world.connect("a", clean_start=False, properties=KEPT, present=True)
    assert [each.payload for each in watcher.take() if isinstance(each, Publish)] == [b"x"]


def test_without_anything_to_continue_no_turn_is_taken() -> None:
    world = World()
    world.connect("a")
    assert not world.broker.has_turns()
    assert not world.broker.take_turns(world.now)
