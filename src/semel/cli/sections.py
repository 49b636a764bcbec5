"""All sections of settings: one file and one environment may serve several commands."""

from typing import Final

from semel.broker.settings import BrokerSettings
from semel.client.ingest_settings import IngestSettings
from semel.pipeline.settings import LandSettings
from semel.settings import Section
from semel.store.settings import StoreSettings, StreamSettings

SECTIONS: Final[tuple[type[Section], ...]] = (
    BrokerSettings,
    StoreSettings,
    StreamSettings,
    IngestSettings,
    LandSettings,
)
