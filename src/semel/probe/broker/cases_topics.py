"""Cases about topic names and filters [4.7] and their strings [1.5]: what matches, and what not."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

from semel.mqtt.packet_types import CONNACK, PINGRESP, PUBACK, PUBLISH, SUBACK
from semel.mqtt.packets.acks import PubAck
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import SubAck
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.case_steps import (
    audience,
    connect_kept,
    listed,
    publish_claimed,
    require_retain,
    require_wildcards,
    retained_removed,
    subscribe_claimed,
    usable_qos,
)
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.verdicts import RECEIVE, SEND

DEFAULT_PREFIX: Final = "semel-probe"


async def must_match(
    trial: Trial,
    topic_filter: str,
    *,
    matched: Sequence[str] = (),
    unmatched: Sequence[str] = (),
    name: str = "sub",
) -> None:
    """Claim which topics a filter matches. All names are below the topic of the trial.

    Every message has the same publisher and QoS, and the last one matches.
    """
    base = trial.topic("")
    link, publisher = await trial.connect(name), await trial.connect("p" + name)
    has_wildcard = "+" in topic_filter or "#" in topic_filter
    if has_wildcard:
        require_wildcards(trial, link)
    qos = usable_qos(link, 1)
    end = base + b"end-of-the-case"
    # Whether filters with wildcards are accepted is the claim of other cases.
    with trial.control() if has_wildcard else nullcontext():
        await subscribe_claimed(trial, link, (base + topic_filter.encode(), qos), (end, qos))
    for topic_name in (*unmatched, *matched):
        payload = topic_name.encode()
        await publish_claimed(trial, publisher, base + payload, payload, qos=qos)
    received = []
    for _ in matched:
        message = await trial.must_receive_message(link)
        received.append(message)
    received += await trial.messages_until(link, end, publisher, qos=qos)
    found = [message.payload.decode() for message in received]
    for topic_name in unmatched:
        trial.must(topic_name not in found, f"{topic_filter!r} matched {topic_name!r}")
    for topic_name in matched:
        trial.must(topic_name in found, f"{topic_filter!r} did not match {topic_name!r}")
    for message in received:
        full = base + message.payload
        came = message.topic_name
        trial.must(came.encode() == full, f"{full.decode()!r} was delivered as {came!r}")
    trial.must(len(found) == len(matched), f"{topic_filter!r} brought {listed(found)}")


# --- strings ---


async def byte_order_mark_is_a_character(trial: Trial) -> None:
    await must_match(trial, "a", matched=("a",), unmatched=("\ufeffa", "a\ufeff"))
    await must_match(
        trial, "\ufeffa", matched=("\ufeffa",), unmatched=("a", "\ufeff\ufeffa"), name="two"
    )


async def byte_order_mark_in_a_client_identifier(trial: Trial) -> None:
    """Two sessions: one name has U+FEFF, the other has not."""
    plain = trial.client_id("x")
    for client_id in (plain, b"\xef\xbb\xbf" + plain):
        link = await trial.open()
        await link.send(trial.connect_bytes(client_id=client_id))
        packet = await link.wait_for(CONNACK, trial.timeout)
        if packet is None or link.connack is None or link.connack.reason:
            with trial.control():
                trial.must(client_id != plain, "the broker refused a right CONNECT")
            trial.not_applicable("the broker refused this client identifier, which it may")
    first = trial.links[0]
    await trial.must_stay_open(first, ": the name with U+FEFF took over the connection")


async def characters_are_kept(trial: Trial) -> None:
    for number, name in enumerate(
        ("é and 漢字", "😀/𝄞", "a\u00adb", "a\u200db", "~!@%^&()=[]{}|;:'\",.<>?`\\")
    ):
        await must_match(trial, name, matched=(name,), name=f"n{number}")


async def control_characters_are_kept_or_refused(trial: Trial) -> None:
    """[1.5.4] A receiver may treat them as malformed; if it does not, it must keep them."""
    subscriber, publisher = await audience(trial, trial.topic("#"), 0)
    require_wildcards(trial, subscriber)
    with trial.control():
        await trial.publish(publisher, trial.topic("right"), b"right")
        await trial.must_receive_message(subscriber)
    for number, character in enumerate(("\u0001", "\u007f", "\uffff", "\ufdd0", "\u0085")):
        link = await trial.connect(f"p{number}")
        name = trial.topic(f"a{character}b")
        await link.send(wire.publish(trial.version, name, b"%d" % number) + wire.pingreq())
        if await link.wait_for(PINGRESP, trial.timeout) is None:
            trial.must(link.is_closed, "the broker neither answers nor closes")
            continue
        message = await trial.must_receive_message(subscriber)
        came = message.topic_name
        trial.must(came.encode() == name, f"{name.decode()!r} was delivered as {came!r}")


async def nothing_is_normalized(trial: Trial) -> None:
    await must_match(trial, "\u00e9", matched=("\u00e9",), unmatched=("e\u0301", "e", "\u00c9"))
    await must_match(
        trial,
        "fi",
        matched=("fi",),
        unmatched=("\ufb01", "\uff46\uff49", "f\u200bi", "FI"),
        name="two",
    )
    await must_match(
        trial, "\u212b", matched=("\u212b",), unmatched=("\u00c5", "A\u030a"), name="three"
    )


async def case_and_spaces_matter(trial: Trial) -> None:
    await must_match(
        trial,
        "Room 1/x",
        matched=("Room 1/x",),
        unmatched=("room 1/x", "Room 1/X", "Room1/x", "Room  1/x", " Room 1/x", "Room 1/x "),
    )
    await must_match(trial, " ", matched=(" ",), unmatched=("", "  "), name="two")


# --- levels ---


async def multi_level_wildcard(trial: Trial) -> None:
    await must_match(
        trial,
        "sport/tennis/#",
        matched=(
            "sport/tennis",
            "sport/tennis/",
            "sport/tennis/one",
            "sport/tennis/one/two/three",
            "sport/tennis//",
        ),
        unmatched=("sport", "sport/tenni", "sport/tennisx", "sport/tennis2/one", "sports/tennis/x"),
    )


async def single_level_wildcard(trial: Trial) -> None:
    await must_match(
        trial,
        "sport/+",
        matched=("sport/", "sport/a", "sport/a-b"),
        unmatched=("sport", "sport/a/b", "sport//", "sports/a"),
    )
    await must_match(
        trial,
        "sport/+/one",
        matched=("sport/a/one", "sport//one"),
        unmatched=("sport/one", "sport/a/b/one", "sport/a/one/", "sport/a/ones"),
        name="two",
    )


async def wildcards_together(trial: Trial) -> None:
    await must_match(
        trial, "+/b/#", matched=("a/b", "a/b/c", "/b/c/d"), unmatched=("b", "a/c/b", "a/a/b/c")
    )
    await must_match(trial, "+/+", matched=("/x", "x/", "a/b"), unmatched=("x", "a/b/c"), name="b")


async def slashes_make_levels(trial: Trial) -> None:
    await must_match(trial, "a/b", matched=("a/b",), unmatched=("a//b", "/a/b", "a/b/", "a\\b"))
    await must_match(trial, "a//b", matched=("a//b",), unmatched=("a/b", "a///b"), name="two")
    await must_match(trial, "/", matched=("/",), unmatched=("", "//"), name="three")


async def other_characters_are_ordinary(trial: Trial) -> None:
    """`*`, `%`, `?`, `.` and `>` are wildcards elsewhere, not in MQTT."""
    for number, character in enumerate("*%?.>_"):
        await must_match(
            trial,
            f"a/{character}",
            matched=(f"a/{character}",),
            unmatched=("a/b", "a/", f"a/{character}{character}", "a/b/c"),
            name=f"n{number}",
        )


async def dollar_inside_is_ordinary(trial: Trial) -> None:
    await must_match(trial, "+/b", matched=("$a/b", "a/b"))
    await must_match(trial, "#", matched=("$a/b", "$"), name="two")


async def many_levels_are_delivered(trial: Trial) -> None:
    """A broker may refuse them; what it accepted it must deliver."""
    link, publisher = await trial.connect(), await trial.connect("pub")
    qos = usable_qos(link, 1)
    name = trial.topic("/".join("abc" * 40))
    await link.send(wire.subscribe(trial.version, [(name, qos)]))
    answer = await link.wait_for(SUBACK, trial.timeout)
    if not isinstance(answer, SubAck) or answer.reasons[0] >= 0x80:
        trial.not_applicable("the broker refused a filter of 122 levels")
    await trial.publish(publisher, name, b"deep", qos=qos)
    message = await trial.must_receive_message(link)
    trial.must(message.topic_name.encode() == name, "the topic name was changed")


async def hash_is_accepted(trial: Trial) -> None:
    link = await trial.connect()
    require_wildcards(trial, link)
    with trial.control():
        await trial.subscribe(link, (trial.topic("plain"), 0))
    for topic_filter in (trial.topic("#"), trial.topic("a/#"), b"#", b"/#"):
        await subscribe_claimed(trial, link, (topic_filter, 0))
        await trial.unsubscribe(link, topic_filter)


async def plus_is_accepted(trial: Trial) -> None:
    link = await trial.connect()
    require_wildcards(trial, link)
    with trial.control():
        await trial.subscribe(link, (trial.topic("plain"), 0))
    below = trial.topic("+").split(b"/", 1)[1]
    for topic_filter in (trial.topic("+"), trial.topic("+/+"), trial.topic("+/a/+"), b"+/" + below):
        await subscribe_claimed(trial, link, (topic_filter, 0))
        await trial.unsubscribe(link, topic_filter)


async def star_is_accepted(trial: Trial) -> None:
    link = await trial.connect()
    qos = usable_qos(link, 1)
    for name in ("*", "a/*", "a*b/**"):
        await publish_claimed(trial, link, trial.topic(name), b"x", qos=qos)
        await subscribe_claimed(trial, link, (trial.topic(name), qos))
    await trial.must_stay_open(link)


async def short_names_are_topics(trial: Trial) -> None:
    """Names outside the prefix: a payload of our own tells ours from others."""
    if trial.subject.prefix != DEFAULT_PREFIX:
        trial.not_applicable("names outside the given prefix are not used")
    link, publisher = await trial.connect(), await trial.connect("pub")
    qos = usable_qos(link, 1)
    for name in ("/", "a", "ä", " ", "//"):
        await subscribe_claimed(trial, link, (name.encode(), qos))
        own = f"{trial.topic('own').decode()} {name}"
        await publish_claimed(trial, publisher, name.encode(), own.encode(), qos=qos)
        message = await trial.must_receive_message(link)
        while message.payload != own.encode():
            message = await trial.must_receive_message(link)
        trial.must(message.topic_name == name, f"delivered as {message.topic_name!r}")
        await trial.unsubscribe(link, name.encode())


# --- topics that begin with $ ---


async def publish_dollar(
    trial: Trial, publisher: ProbeLink, name: bytes, *, retain: bool = False
) -> bool:
    """Publish to a topic that begins with $; whether the broker took it."""
    qos = usable_qos(publisher, 1)
    await publisher.send(
        wire.publish(trial.version, name, b"dollar", qos=qos, packet_id=31, retain=retain)
    )
    if not qos:
        await publisher.send(wire.pingreq())
        return await publisher.wait_for(PINGRESP, trial.timeout) is not None
    answer = await publisher.wait_for(PUBACK, trial.timeout)
    return isinstance(answer, PubAck) and answer.reason < 0x80


async def known_dollar_topic(trial: Trial, publisher: ProbeLink) -> bytes:
    """A topic that begins with $ and has messages: one of ours, or of the broker's own.

    [4.7.2] A broker should keep clients from exchanging messages on such topics.
    """
    link = await trial.connect("exact")
    own = b"$" + trial.topic("a")
    await trial.subscribe(link, (own, 0))
    if await publish_dollar(trial, publisher, own) and await link.wait_for(PUBLISH, 1.0):
        return own
    await trial.subscribe(link, (b"$SYS/#", 0))
    message = await link.wait_for(PUBLISH, 1.0)
    if not isinstance(message, Publish):
        trial.not_applicable("the broker has no messages to topics that begin with $")
    return message.topic_name.encode()


async def first_wildcard_does_not_match_dollar(trial: Trial, *, multi_level: bool) -> None:
    publisher = await trial.connect("pub")
    require_wildcards(trial, publisher)
    qos = usable_qos(publisher, 1)
    known = await known_dollar_topic(trial, publisher)
    if publisher.is_closed:
        publisher = await trial.connect("second")
    topic_filter = b"#" if multi_level else b"+/" + known.split(b"/", 1)[1]
    is_own = known == b"$" + trial.topic("a")
    wild, end = await trial.connect("wild"), trial.topic("end")
    await trial.subscribe(wild, (topic_filter, qos), (end, qos))
    if is_own:
        await publish_dollar(trial, publisher, known)
    await trial.publish(publisher, trial.topic("a"), b"plain", qos=qos)
    found = await trial.messages_until(wild, end, publisher, qos=qos)
    wrong = [message.topic_name for message in found if message.topic_name.startswith("$")]
    shown = topic_filter.decode()
    trial.must(not wrong, f"{shown!r} matched {listed(wrong)}")
    if is_own or multi_level:
        with trial.control():
            came = any(message.topic_name.encode() == trial.topic("a") for message in found)
            trial.must(came, f"{shown!r} did not match {trial.topic('a').decode()!r}")


async def plus_does_not_match_dollar(trial: Trial) -> None:
    await first_wildcard_does_not_match_dollar(trial, multi_level=False)


async def hash_does_not_match_dollar(trial: Trial) -> None:
    await first_wildcard_does_not_match_dollar(trial, multi_level=True)


async def retained_dollar_topics(trial: Trial) -> None:
    """What is retained is matched by new subscriptions in the same way."""
    publisher, exact = await trial.connect("pub"), await trial.connect("exact")
    require_wildcards(trial, publisher)
    require_retain(trial, publisher)
    qos = usable_qos(publisher, 1)
    name = b"$" + trial.topic("a")
    async with retained_removed(trial, name):
        await publish_dollar(trial, publisher, name, retain=True)
        await trial.subscribe(exact, (name, qos))
        if await exact.wait_for(PUBLISH, 1.0) is None:
            trial.not_applicable("the broker retains no message of a client to a topic with $")
        end = trial.topic("end")
        for number, topic_filter in enumerate((b"+/" + name.split(b"/", 1)[1], b"#")):
            link = await trial.connect(f"w{number}")
            await trial.subscribe(link, (topic_filter, qos), (end, qos))
            found = await trial.messages_until(link, end, publisher, qos=qos)
            wrong = [each.topic_name for each in found if each.topic_name.startswith("$")]
            shown = topic_filter.decode()
            trial.must(not wrong, f"{shown!r} matched the retained messages of {listed(wrong)}")
            await link.cut()


async def dollar_filters_match_dollar(trial: Trial) -> None:
    """A filter that itself begins with $ may have wildcards further on."""
    link, publisher = await trial.connect(), await trial.connect("pub")
    require_wildcards(trial, link)
    qos = usable_qos(publisher, 1)
    dollar = b"$" + trial.topic("a")
    exact = await trial.connect("exact")
    await trial.subscribe(exact, (dollar, qos))
    for topic_filter in (b"$" + trial.topic("+"), b"$" + trial.topic("#")):
        await trial.subscribe(link, (topic_filter, qos))
        await publish_dollar(trial, publisher, dollar)
        if await exact.wait_for(PUBLISH, 1.0) is None:
            trial.not_applicable("the broker delivers no message of a client to a topic with $")
        message = await trial.must_receive_message(link)
        trial.must(message.topic_name.encode() == dollar, f"{message.topic_name} came")
        await trial.unsubscribe(link, topic_filter)


async def kept_filters_match_exactly(trial: Trial) -> None:
    """The filters of a session that is away match as those of one that is not."""
    link, publisher = await connect_kept(trial, "kept"), await trial.connect("pub")
    require_wildcards(trial, link)
    qos = usable_qos(link, 1)
    if not qos:
        trial.not_applicable("the broker said in CONNACK that it supports QoS 0 only")
    await trial.subscribe(link, (trial.topic("a/+"), qos))
    await link.send(wire.disconnect(trial.version))
    await link.wait_closed(1.0)
    for name in ("a", "A/b", "a/b/c", "a/b"):
        await trial.publish(publisher, trial.topic(name), name.encode(), qos=qos)
    link = await trial.connect_durable("kept")
    message = await trial.expect_message(link)
    trial.must(message.payload == b"a/b", f"{message.topic_name} came")


CASES: Final = (
    Case(
        "topic-with-feff",
        SEND,
        "U+FEFF in a topic is a character that is neither removed nor ignored.",
        byte_order_mark_is_a_character,
        mqtt311="1.5.3-3",
        mqtt5="1.5.4-3",
    ),
    Case(
        "client-identifier-with-feff",
        SEND,
        "A client identifier with U+FEFF is another one than without.",
        byte_order_mark_in_a_client_identifier,
        mqtt311="1.5.3-3",
        mqtt5="1.5.4-3",
    ),
    Case(
        "topic-characters-kept",
        SEND,
        "Topic names of any characters match themselves and are delivered unchanged.",
        characters_are_kept,
        mqtt311="4.7.3-4",
        mqtt5="4.7.3-4",
    ),
    Case(
        "control-characters",
        RECEIVE,
        "A PUBLISH with a control character in its topic is refused, or delivered unchanged.",
        control_characters_are_kept_or_refused,
        mqtt5="U5-06",
    ),
    Case(
        "topics-not-normalized",
        SEND,
        "Topics match by their characters, without normalization.",
        nothing_is_normalized,
        mqtt311="4.7.3-4",
        mqtt5="4.7.3-4",
    ),
    Case(
        "topics-case-and-spaces",
        SEND,
        "Case and spaces distinguish topics.",
        case_and_spaces_matter,
        mqtt311="4.7.3-4",
        mqtt5="4.7.3-4",
    ),
    Case(
        "multi-level-wildcard",
        SEND,
        "`#` matches the parent and any number of levels.",
        multi_level_wildcard,
        mqtt311="3.3.2-3 4.5.0-1",
        mqtt5="3.3.2-3 4.5.0-1",
    ),
    Case(
        "single-level-wildcard",
        SEND,
        "`+` matches exactly one level, which may be empty.",
        single_level_wildcard,
        mqtt311="3.3.2-3 4.5.0-1",
        mqtt5="3.3.2-3 4.5.0-1",
    ),
    Case(
        "wildcards-together",
        SEND,
        "`+` and `#` may be used together.",
        wildcards_together,
        mqtt311="3.3.2-3 4.5.0-1",
        mqtt5="3.3.2-3 4.5.0-1",
    ),
    Case(
        "hash-accepted",
        RECEIVE,
        "Filters with `#` alone or after the last `/` are accepted.",
        hash_is_accepted,
        mqtt311="4.7.1-2",
        mqtt5="4.7.1-1",
    ),
    Case(
        "plus-accepted",
        RECEIVE,
        "Filters with `+` in one or several levels are accepted.",
        plus_is_accepted,
        mqtt311="4.7.1-3",
        mqtt5="4.7.1-2",
    ),
    Case(
        "slashes-make-levels",
        SEND,
        "Each `/` begins a level, also at the beginning, at the end, and next to another.",
        slashes_make_levels,
        mqtt311="4.7.3-4",
        mqtt5="4.7.3-4",
    ),
    Case(
        "other-characters-ordinary",
        SEND,
        "`*` and other characters are no wildcards, in filters and in topic names.",
        other_characters_are_ordinary,
        mqtt311="4.7.3-4",
        mqtt5="4.7.3-4",
    ),
    Case(
        "star-accepted",
        RECEIVE,
        "`*` is accepted in topic names and in filters.",
        star_is_accepted,
        mqtt311="4.7.1-1 3.3.2-2",
        mqtt5="4.7.0-1 3.3.2-2",
    ),
    Case(
        "dollar-inside-a-topic",
        SEND,
        "`$` is an ordinary character except at the beginning of a topic.",
        dollar_inside_is_ordinary,
        mqtt311="4.7.2-1",
        mqtt5="4.7.2-1",
    ),
    Case(
        "many-levels",
        SEND,
        "A message to a topic of many levels, which the broker accepted, is delivered.",
        many_levels_are_delivered,
        mqtt311="4.5.0-1",
        mqtt5="4.5.0-1",
    ),
    Case(
        "short-topics",
        SEND,
        "A topic of one character, `/` among them, is a topic.",
        short_names_are_topics,
        mqtt311="4.7.3-1",
        mqtt5="4.7.3-1",
    ),
    Case(
        "plus-and-dollar",
        SEND,
        "A filter that begins with `+` does not match a topic that begins with `$`.",
        plus_does_not_match_dollar,
        mqtt311="4.7.2-1",
        mqtt5="4.7.2-1",
    ),
    Case(
        "hash-and-dollar",
        SEND,
        "The filter `#` does not match a topic that begins with `$`.",
        hash_does_not_match_dollar,
        mqtt311="4.7.2-1",
        mqtt5="4.7.2-1",
    ),
    Case(
        "retained-dollar-topics",
        SEND,
        "A new subscription that begins with a wildcard brings nothing retained from `$` topics.",
        retained_dollar_topics,
        mqtt311="4.7.2-1",
        mqtt5="4.7.2-1",
    ),
    Case(
        "dollar-filters",
        SEND,
        "A filter that begins with `$` matches with wildcards further on.",
        dollar_filters_match_dollar,
        mqtt311="4.7.2-1",
        mqtt5="4.7.2-1",
    ),
    Case(
        "filters-of-a-session-away",
        SEND,
        "The filters of a session that is not connected match as others do.",
        kept_filters_match_exactly,
        mqtt311="3.3.2-3",
        mqtt5="3.3.2-3",
    ),
)
