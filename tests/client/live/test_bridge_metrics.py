"""The metrics of a bridge between two live brokers."""

from pathlib import Path

from semel.client.bridge_metrics import BridgeMetrics
from semel.mqtt import ConnAck, Properties, PubAck, Publish, PubRec, Subscribe
from semel.mqtt.reasons import NOT_AUTHORIZED, QUOTA_EXCEEDED
from tests.client.bridges import bridge_of, bridging, is_ready
from tests.client.core.test_bridge_metrics import values
from tests.client.ingests import until
from tests.client.listening import run
from tests.client.servers import Scripted
from tests.metrics.bridges import (
    exposition_of,
)


def test_a_bridge_counts_what_it_moves_and_what_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        small = ConnAck(properties=Properties(maximum_packet_size=200))
        async with Scripted(grants=True) as local, Scripted(small) as remote:
            settings = bridge_of(tmp_path, local.port, remote.port, to_remote=("plant/#",))
            async with bridging(settings) as work:
                metrics = BridgeMetrics([work])
                source = await local.visit()
                await source.take(Subscribe)
                destination = await remote.visit()
                await is_ready(work)
                assert metrics.readiness() is None
                source.send(
                    Publish("plant/1", b"zero", 0),
                    Publish("plant/1", b"a", 1, 1),
                    Publish("plant/1", b"bb", 2, 2),
                    Publish("plant/1", b"x" * 300, 1, 3),
                )
                await destination.take(Publish)
                one, two = await destination.take(Publish), await destination.take(Publish)
                destination.send(
                    PubAck(one.packet_id, QUOTA_EXCEEDED), PubRec(two.packet_id, NOT_AUTHORIZED)
                )
                await until(lambda: work.status.to_remote.refused == 3)
                found = exposition_of(metrics)
                way = {"bridge": "site", "direction": "to_remote"}
                moved = values(found, "semel_bridge_messages_moved_total", **way)
                assert moved == {"0": 1, "1": 2, "2": 1}
                payloads = values(found, "semel_bridge_payload_moved_bytes_total", **way)
                assert payloads == {"0": 4, "1": 301, "2": 2}
                refused = values(found, "semel_bridge_messages_refused_total", **way)
                assert {code for code, number in refused.items() if number} == {"0x87", "0x97"}
                name = "semel_bridge_messages_dropped_total"
                assert found.value(name, reason="over_limit", **way) == 1
                assert 0 <= found.value("semel_bridge_idle_seconds", **way) < 600
                assert metrics.families()
            # After its end the numbers are still there.
            assert exposition_of(metrics).value(name, reason="over_limit", **way) == 1
            assert metrics.readiness() == "bridge site is not running: ended"

    run(main())
