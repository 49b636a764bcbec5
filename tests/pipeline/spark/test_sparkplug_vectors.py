"""Payloads of other implementations of Sparkplug B, and what we read in them.

They were encoded once, and are kept as bytes: pysparkplug requires a release of paho-mqtt that
contradicts ours, and sparkplug-payload is a package of npm.
"""

import json
from typing import Any

import pytest

from semel.pipeline.sparkplug.payload import SparkplugMessage, decode_message
from semel.pipeline.sparkplug.state import Applied, EdgeNodeState, MetricRow, apply, host_event

# Encoded by pysparkplug 0.6.1: one metric of each data type that it has, with aliases from 100 on.
PY_NBIRTH = bytes.fromhex(
    "08eaf2f5a8a02b12120a05626453657118eaf2f5a8a02b2004580712140a04496e7438106418eaf2f5a8a02b2001"
    "50800112160a05496e743136106518ebf2f5a8a02b20025080800212180a05496e743332106618ecf2f5a8a02b20"
    "03508080808008121d0a05496e743634106718edf2f5a8a02b2004588080808080808080800112150a0555496e74"
    "38106818eef2f5a8a02b200550ff0112170a0655496e743136106918eff2f5a8a02b200650ffff0312190a065549"
    "6e743332106a18f0f2f5a8a02b200750ffffffff0f121e0a0655496e743634106b18f1f2f5a8a02b200858ffffff"
    "ffffffffffff0112170a05466c6f6174106c18f2f2f5a8a02b2009650000c03f121c0a06446f75626c65106d18f3"
    "f2f5a8a02b200a699a9999999999b93f12160a07426f6f6c65616e106e18f4f2f5a8a02b200b7001121c0a065374"
    "72696e67106f18f5f2f5a8a02b200c7a074772c3bcc39f65121c0a084461746554696d65107018f6f2f5a8a02b20"
    "0d58d291e0a6df3112170a0454657874107118f7f2f5a8a02b200e7a047465787412370a0455554944107218f8f2"
    "f5a8a02b200f7a2439663162336331652d376135332d346630652d626430662d3562316332663361346435651217"
    "0a054279746573107318f9f2f5a8a02b201182010200ff12180a0446696c65107418faf2f5a8a02b201282010466"
    "696c65121b0a09496e74384172726179107518fbf2f5a8a02b2016820102e97b121e0a0a496e7431364172726179"
    "107618fcf2f5a8a02b2017820104d08a307512220a0a496e7433324172726179107718fdf2f5a8a02b2018820108"
    "fffffffffaafcb12122a0a0a496e7436344172726179107818fef2f5a8a02b2019820110ce0672ac189cbac4c4ba"
    "9c18ac7206ce121c0a0a55496e74384172726179107918fff2f5a8a02b201a82010217fa121f0a0b55496e743136"
    "4172726179107a1880f3f5a8a02b201b8201041e0088cc12230a0b55496e7433324172726179107b1881f3f5a8a0"
    "2b201c8201083400000049fb55c4122b0a0b55496e7436344172726179107c1882f3f5a8a02b201d820110340000"
    "0000000000d99e02d1b27637e412220a0a466c6f61744172726179107d1883f3f5a8a02b201e8201080000a03f00"
    "00f0c0122b0a0b446f75626c654172726179107e1884f3f5a8a02b201f820110d7a205685bb528408e171c6f4cf7"
    "8f4012220a0c426f6f6c65616e4172726179107f1885f3f5a8a02b20208201060c00000034d012290a0b53747269"
    "6e6741727261791080011886f3f5a8a02b202182010d4142430068656c6c6f00c3bc00122e0a0d4461746554696d"
    "6541727261791081011887f3f5a8a02b2022820110d208d8f48d010000d308d8f48d01000012170a074e6f746869"
    "6e6710c80118eaf2f5a8a02b200338011800"
)
PY_NDATA = bytes.fromhex(
    "08f299f6a8a02b120d106518f299f6a8a02b50fbff031214106d188a92f6a8a02b2801690000000000000440120c"
    "10c80118f299f6a8a02b38011801"
)
PY_DBIRTH = bytes.fromhex("08eaf2f5a8a02b12140a054c6576656c100118eaf2f5a8a02b200650031802")
PY_DDATA = bytes.fromhex("08eaf2f5a8a02b120b100118eaf2f5a8a02b50041803")
PY_DDEATH = bytes.fromhex("08eaf2f5a8a02b1804")
PY_NCMD = bytes.fromhex(
    "08eaf2f5a8a02b12210a144e6f646520436f6e74726f6c2f5265626972746818eaf2f5a8a02b200b7001"
)
PY_NDEATH = bytes.fromhex("08daa1f6a8a02b12120a05626453657118eaf2f5a8a02b20045807")
PY_STATE = b'{"timestamp": 1486144502122, "online": true}'
# Encoded by sparkplug-payload 1.0.3, which Eclipse Tahu publishes for Node.js.
JS_NBIRTH = bytes.fromhex(
    "08eaf2f5a8a02b12120a05626453657118eaf2f5a8a02b2008580712170a04496e7438100118eaf2f5a8a02b2001"
    "509cffffff0f120f0a05496e743136200250d095feff0f120f0a05496e74333220035080d8a9c60812140a05496e"
    "74363420045881808080808080f0ff0112100a0655496e74333220075880d0acf30e12130a084461746554696d65"
    "200d58eaf2f5a8a02b12630a05466c6f617420094a530a07656e67556e69740a075175616c6974790a066c696d69"
    "74731205080c4201431205080318c001122908144a250a036c6f770a0468696768120b080a31000000000000f8bf"
    "120b080a310000000000802240650000003f120f0a05427974657320118201030102ff124d0a055461626c652010"
    "8a014108031201611201621201631801180c180a22180a0608ffffffff0f0a033201780a0921000000000000f43f"
    "22140a0208020a033201790a092100000000000004c012460a054d6f746f72201392013a0a027631120d0a035250"
    "4d200350f9ffffff0f120d0a04414d50532009650000c03f12080a026f6e200b70001a0a0a0473697a6510031803"
    "280112210a024d3120139201180a02763112090a0352504d2003507b22054d6f746f722800120d0a034f6c642003"
    "280130015001120a0a044e756c6c200c380112260a0550686f746f201242141209696d6167652f67696618042a05"
    "612e676966820104474946381800"
)

NODE = "spBv1.0/plant/{}/line-1"
DEVICE = "spBv1.0/plant/{}/line-1/pump"
TIME = 1_486_144_502_122_000


def decoded(topic: str, payload: bytes) -> SparkplugMessage:
    found = decode_message(topic, payload)
    assert isinstance(found, SparkplugMessage), found
    return found


def applied(state: EdgeNodeState, topic: str, payload: bytes) -> Applied:
    return apply(state, decoded(topic, payload))


def value_of(row: MetricRow) -> Any:
    """The value of a row, which has at most one."""
    found = {
        name: value
        for name, value in row._asdict().items()
        if name.startswith("value_") and value is not None
    }
    assert len(found) <= 1
    assert row.problem is None
    return next(iter(found.items())) if found else None


PY_VALUES: dict[str, tuple[str, Any] | None] = {
    "bdSeq": ("value_long", 7),
    "Int8": ("value_long", -128),
    "Int16": ("value_long", -32768),
    "Int32": ("value_long", -(2**31)),
    "Int64": ("value_long", -(2**63)),
    "UInt8": ("value_long", 255),
    "UInt16": ("value_long", 65535),
    "UInt32": ("value_long", 2**32 - 1),
    "UInt64": ("value_text", "18446744073709551615"),
    "Float": ("value_double", 1.5),
    "Double": ("value_double", 0.1),
    "Boolean": ("value_boolean", True),
    "String": ("value_text", "Grüße"),
    "DateTime": ("value_time", 1_709_209_815_250_000),
    "Text": ("value_text", "text"),
    "UUID": ("value_text", "9f1b3c1e-7a53-4f0e-bd0f-5b1c2f3a4d5e"),
    "Bytes": ("value_bytes", b"\x00\xff"),
    "File": ("value_bytes", b"file"),
    "Int8Array": ("value_text", "[-23,123]"),
    "Int16Array": ("value_text", "[-30000,30000]"),
    "Int32Array": ("value_text", "[-1,315338746]"),
    "Int64Array": ("value_text", "[-4270929666821191986,-3601064768563266876]"),
    "UInt8Array": ("value_text", "[23,250]"),
    "UInt16Array": ("value_text", "[30,52360]"),
    "UInt32Array": ("value_text", "[52,3293969225]"),
    "UInt64Array": ("value_text", "[52,16444743074749521625]"),
    "FloatArray": ("value_text", "[1.25,-7.5]"),
    "DoubleArray": ("value_text", "[12.354213,1022.9123213]"),
    "BooleanArray": (
        "value_text",
        json.dumps([each == "1" for each in "001101001101"], separators=(",", ":")),
    ),
    "StringArray": ("value_text", '["ABC","hello","ü"]'),
    "DateTimeArray": ("value_text", '["2024-02-29T12:30:15.250Z","2024-02-29T12:30:15.251Z"]'),
    "Nothing": None,
}


def test_every_data_type_of_pysparkplug_is_read() -> None:
    found = applied(EdgeNodeState(), NODE.format("NBIRTH"), PY_NBIRTH)
    assert {row.name: value_of(row) for row in found.metrics} == PY_VALUES
    assert [row.datatype for row in found.metrics[1:-1]] == list(PY_VALUES)[1:-1]
    assert [row.alias for row in found.metrics[1:-1]] == list(range(100, 130))
    assert [row.metric_time for row in found.metrics[1:4]] == [TIME, TIME + 1_000, TIME + 2_000]
    assert all(row.is_resolved for row in found.metrics)
    assert (found.metrics[-1].is_null, found.metrics[-1].datatype) == (True, "Int32")
    assert [event.event for event in found.events] == ["birth"]
    assert (found.state.bd_seq, found.state.next_seq, found.gaps) == (7, 1, [])


def test_a_session_of_pysparkplug_is_followed() -> None:
    state = applied(EdgeNodeState(), NODE.format("NBIRTH"), PY_NBIRTH).state
    data = applied(state, NODE.format("NDATA"), PY_NDATA)
    assert [(row.name, row.datatype, value_of(row)) for row in data.metrics] == [
        ("Int16", "Int16", ("value_long", -5)),
        ("Double", "Double", ("value_double", 2.5)),
        ("Nothing", "Int32", None),
    ]
    assert [row.is_historical for row in data.metrics] == [False, True, False]
    birth = applied(data.state, DEVICE.format("DBIRTH"), PY_DBIRTH)
    level = applied(birth.state, DEVICE.format("DDATA"), PY_DDATA)
    assert [(row.name, row.value_long) for row in level.metrics] == [("Level", 4)]
    command = applied(level.state, NODE.format("NCMD"), PY_NCMD)
    assert [event.event for event in command.events] == ["rebirth_requested"]
    assert command.state == level.state
    gone = applied(command.state, DEVICE.format("DDEATH"), PY_DDEATH)
    assert [(event.event, event.device_id) for event in gone.events] == [("death", "pump")]
    end = applied(gone.state, NODE.format("NDEATH"), PY_NDEATH)
    assert [event.event for event in end.events] == ["death"]
    assert not end.state.is_online
    assert not any(each.gaps for each in (data, birth, level, command, gone, end))
    host = decoded("spBv1.0/STATE/scada", PY_STATE)
    assert (host.topic.host_id, host.time, host_event(host).event) == (
        *("scada", TIME, "host_online"),
    )


def test_a_birth_of_sparkplug_payload_is_read() -> None:
    found = applied(EdgeNodeState(), NODE.format("NBIRTH"), JS_NBIRTH)
    values = {row.name: value_of(row) for row in found.metrics}
    texts = {name: json.loads(values.pop(name)[1]) for name in ("Table", "Motor", "M1")}
    assert values == {
        "bdSeq": ("value_long", 7),
        "Int8": ("value_long", -100),
        "Int16": ("value_long", -30_000),
        "Int32": ("value_long", -2_000_000_000),
        "Int64": ("value_long", -9_007_199_254_740_991),
        # In the other field than pysparkplug's.
        "UInt32": ("value_long", 4_000_000_000),
        "DateTime": ("value_time", TIME),
        "Float": ("value_double", 0.5),
        "Bytes": ("value_bytes", b"\x01\x02\xff"),
        "Old": ("value_long", 1),
        "Null": None,
        "Photo": ("value_bytes", b"GIF8"),
    }
    assert texts["Table"] == {
        "columns": ["a", "b", "c"],
        "types": ["Int8", "String", "Double"],
        "rows": [[-1, "x", 1.25], [2, "y", -2.5]],
    }
    assert texts["Motor"] == {
        "version": "v1",
        "reference": None,
        "is_definition": True,
        "parameters": [{"name": "size", "datatype": "Int32", "value": 3}],
        "metrics": [
            {"name": "RPM", "datatype": "Int32", "value": -7},
            {"name": "AMPS", "datatype": "Float", "value": 1.5},
            {"name": "on", "datatype": "Boolean", "value": False},
        ],
    }
    assert (texts["M1"]["reference"], texts["M1"]["is_definition"]) == ("Motor", False)
    rows = {row.name: row for row in found.metrics}
    properties = rows["Float"].properties
    assert properties is not None
    assert json.loads(properties) == {
        "engUnit": "C",
        "Quality": 192,
        "limits": {"low": -1.5, "high": 9.25},
    }
    metadata = rows["Photo"].metadata
    assert metadata is not None
    assert json.loads(metadata) == {"content_type": "image/gif", "size": 4, "file_name": "a.gif"}
    assert (rows["Old"].is_historical, rows["Old"].is_transient) == (True, True)
    assert found.gaps == []


@pytest.mark.parametrize("payload", [PY_NBIRTH, JS_NBIRTH])
def test_a_payload_that_was_cut_never_raises(payload: bytes) -> None:
    for end in range(len(payload)):
        found = decode_message(NODE.format("NBIRTH"), payload[:end])
        if isinstance(found, SparkplugMessage):
            apply(EdgeNodeState(), found)
