"""All sections of settings: one file and one environment may serve several commands."""

from typing import Final

from semel.broker.access.rights_settings import RightsSettings
from semel.broker.access.users_settings import UsersSettings
from semel.broker.network.control_settings import AuditSettings, ControlSettings
from semel.broker.network.listener_settings import ListenerSettings
from semel.broker.settings import BrokerSettings
from semel.client.bridge_settings import BridgeSettings, SharedBridgeSettings
from semel.client.ingest_settings import IngestSettings
from semel.pipeline.settings import LandSettings
from semel.settings import Section
from semel.store.settings import StoreSettings, StreamSettings
from semel.web.settings import WebSettings

SECTIONS: Final[tuple[type[Section], ...]] = (
    BrokerSettings,
    ListenerSettings,
    RightsSettings,
    StoreSettings,
    StreamSettings,
    UsersSettings,
    ControlSettings,
    AuditSettings,
    IngestSettings,
    BridgeSettings,
    SharedBridgeSettings,
    LandSettings,
    WebSettings,
)
