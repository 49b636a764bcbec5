"""One thing that is wrong each, for the store of `make_small`: what to do, and what is found.

Each is a list of statements, the table and words of a finding, and what a repair loses over it:
the table of a row that is dropped, "gap" if rows of a stream are missing, "" for nothing.
"""

Fault = tuple[list[str], str, str, str]

_D = "UPDATE delivery SET {} WHERE session = 1 AND number = {}"
_P = "UPDATE particular SET {} WHERE session = 1 AND number = {}"

FAULTS: list[Fault] = [
    # one value
    (["INSERT INTO fact VALUES ('', 'x')"], "fact", "name is empty", "fact"),
    (["UPDATE session SET expiry = -1 WHERE number = 2"], "session", "expiry is -1", "session"),
    (["UPDATE session SET expiry = 'x' WHERE number = 2"], "session", "not an integer", "session"),
    (
        ["UPDATE session SET client_id = CAST(x'61ff' AS TEXT) WHERE number = 2"],
        "session",
        "TEXT_WELL_FORMED",
        "session",
    ),
    (
        ["UPDATE session SET client_id = 'a' || char(0) WHERE number = 2"],
        "session",
        "TEXT_WITHOUT_NUL",
        "session",
    ),
    (["UPDATE subscription SET options = 3"], "subscription", "NOT_3", "subscription"),
    (["UPDATE subscription SET options = 64"], "subscription", "options is 64", "subscription"),
    (["UPDATE subscription SET filter = 'a#'"], "subscription", "HASH", "subscription"),
    (["UPDATE subscription SET identifier = -1"], "subscription", "identifier is", "subscription"),
    (["UPDATE subscription SET cursor = -1"], "subscription", "cursor is -1", "subscription"),
    (["UPDATE inbound SET packet_id = 0"], "inbound", "packet_id is 0", "inbound"),
    (["UPDATE inbound SET packet_id = 65536"], "inbound", "packet_id is 65536", "inbound"),
    ([_D.format("packet_id = 65536", 1)], "delivery", "packet_id is 65536", "delivery"),
    ([_D.format("flags = 0", 3)], "delivery", "flags is 0", "delivery"),
    ([_D.format("topic = ''", 3)], "delivery", "TOPIC_NAME_NOT_EMPTY", "delivery"),
    ([_D.format("topic = 'a/+'", 3)], "delivery", "WITHOUT_WILDCARDS", "delivery"),
    ([_D.format("topic = NULL", 3)], "delivery", "message is not there", "delivery"),
    ([_D.format("payload = NULL", 3)], "delivery", "payload is not there", "delivery"),
    ([_D.format("payload = 'text'", 3)], "delivery", "payload is not bytes", "delivery"),
    ([_D.format("released = 1", 1)], "delivery", "no QoS 2 message", "delivery"),
    ([_D.format("topic = 't'", 2)], "delivery", "its message is there", "delivery"),
    ([_P.format("size = 1", 4)], "delivery", "size is 1", "delivery"),
    ([_P.format("share = 'a#'", 4)], "particular", "HASH_IS_LAST_LEVEL", "particular"),
    ([_P.format("properties = x'05'", 4)], "particular", "FIELD_WITHIN_PACKET", "particular"),
    (
        [_P.format("properties = CAST(properties || x'00' AS BLOB)", 4)],
        "particular",
        "do not end where they should",
        "particular",
    ),
    # A Will Delay Interval, which only a will may have.
    ([_P.format("properties = x'051800000001'", 4)], "delivery", "IN_ITS_PACKET", "delivery"),
    ([_P.format("body = 77", 5)], "delivery", "payload is not there", "delivery"),
    ([_D.format("payload = x'00'", 5)], "delivery", "a payload, and a body", "delivery"),
    (["UPDATE body SET payload = x'00'"], "delivery", "its message has", "delivery"),
    (["UPDATE will SET retain = 2"], "will", "retain is 2", "will"),
    (["UPDATE will SET qos = 3"], "will", "WILL_QOS_NOT_3", "will"),
    (["UPDATE will SET topic = '#'"], "will", "WITHOUT_WILDCARDS", "will"),
    (["UPDATE will SET user_name = CAST(x'ff' AS TEXT)"], "will", "TEXT_WELL_FORMED", "will"),
    (["UPDATE will SET properties = x'03230001'"], "will", "PROPERTY_IN_ITS_PACKET", "will"),
    (["UPDATE retained SET payload = x''"], "retained", "payload is empty", "retained"),
    (["UPDATE retained SET qos = 3"], "retained", "qos is 3", "retained"),
    (["UPDATE retained SET qos = 4"], "retained", "qos is 4", "retained"),
    # Text that says to be UTF-8 and is not.
    (
        ["UPDATE retained SET properties = x'020101', payload = x'ff' WHERE place = 1"],
        "retained",
        "PAYLOAD_IS_UTF8_AS_SAID",
        "retained",
    ),
    (["UPDATE stream SET name = '' WHERE id = 2"], "stream", "name is empty", "stream"),
    (["UPDATE stream SET sealed = 6 WHERE id = 1"], "stream", "sealed is 6", "stream"),
    (["UPDATE stream SET sealing = -1 WHERE id = 2"], "stream", "sealing is -1", "stream"),
    (["UPDATE record SET flags = 16 WHERE seq = 3"], "record", "flags is 16", "gap"),
    (["UPDATE record SET flags = 3 WHERE seq = 3"], "record", "QOS_NOT_3", "gap"),
    (["UPDATE record SET flags = 8 WHERE seq = 3"], "record", "DUP_NEEDS_QOS", "gap"),
    (["UPDATE record SET version = 3 WHERE seq = 3"], "record", "version is 3", "gap"),
    (
        ["UPDATE record SET version = 4, properties = x'020100' WHERE seq = 3"],
        "record",
        "PROPERTIES_NEED_MQTT5",
        "gap",
    ),
    (["UPDATE record SET properties = x'03230001' WHERE seq = 3"], "record", "Topic Alias", "gap"),
    (["UPDATE record SET packet_id = 65536 WHERE seq = 3"], "record", "packet_id", "gap"),
    (["UPDATE record SET received = -1 WHERE seq = 3"], "record", "received is -1", "gap"),
    (["UPDATE record SET topic = '' WHERE seq = 3"], "record", "TOPIC_NAME_NOT_EMPTY", "gap"),
    # rows together
    (["DELETE FROM session WHERE number = 2"], "delivery", "of a session that is not", "delivery"),
    (["UPDATE inbound SET session = 9"], "inbound", "of a session that is not", "inbound"),
    (
        ["UPDATE subscription SET session = 9 WHERE session = 2"],
        "subscription",
        "of a session that is not",
        "subscription",
    ),
    (
        ["INSERT INTO particular VALUES (1, 77, 5, NULL, NULL, NULL, NULL)"],
        "particular",
        "of no delivery",
        "particular",
    ),
    ([_D.format("packet_id = 1", 2)], "delivery", "2 deliveries have this identifier", "delivery"),
    ([_D.format("packet_id = 9", 4)], "delivery", "one before it waits", "delivery"),
    (
        ["INSERT INTO particular VALUES (1, 2, 5, NULL, NULL, NULL, NULL)"],
        "delivery",
        "its message is there",
        "delivery",
    ),
    (["UPDATE body SET uses = 5"], "body", "uses is 5, but 2 deliveries have it", ""),
    (["UPDATE body SET uses = 0"], "body", "uses is 0", "body"),
    (["INSERT INTO body VALUES (9, 1, x'00')"], "body", "but 0 deliveries", "body"),
    (["DELETE FROM record WHERE seq = 3"], "record", "are not there", "gap"),
    (["DELETE FROM record WHERE seq = 1"], "record", "are not there", "gap"),
    (["DELETE FROM record WHERE seq = 5"], "record", "are not there", "gap"),
    (["UPDATE stream SET last_seq = 4 WHERE id = 1"], "record", "after the last", ""),
    (["DELETE FROM stream WHERE id = 1"], "record", "of a stream that is not", ""),
    # the file
    (["DROP TRIGGER body_is_used_less"], "body_is_used_less", "is not there", ""),
    (["DROP TABLE will"], "will", "is not there", "will"),
    (
        [
            "DROP TRIGGER body_is_used_less",
            "CREATE TRIGGER body_is_used_less AFTER DELETE ON particular BEGIN SELECT 1; END",
        ],
        "body_is_used_less",
        "is not defined as it should be",
        "",
    ),
    (["PRAGMA application_id = 7"], "store.db", "its mark is not that of one", ""),
    (["PRAGMA user_version = 257"], "store.db", "says that its format is 257", ""),
]
