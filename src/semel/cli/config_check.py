"""Checks settings beyond what `load` does: what they mean together, and the files that they name.

`semel config check` and `semel broker --check-config` both call `check_settings`.
"""

from collections.abc import Callable, Sequence

from semel.broker.access.loading import load_access
from semel.broker.access.users_settings import UsersSettings
from semel.broker.network.listener_settings import choose_listeners
from semel.broker.network.listeners import check_listeners
from semel.broker.settings import BrokerSettings
from semel.client.bridge_plan import make_bridge_plans
from semel.client.bridge_settings import BridgeSettings
from semel.extras import MissingExtra
from semel.settings import Settings, SettingsError
from semel.store.settings import StoreSettings, StreamSettings, check_streams


def check_settings(
    settings: Settings,
    *,
    listener_urls: Sequence[str] = (),
    more_streams: Sequence[StreamSettings] = (),
) -> tuple[str, ...]:
    """Check everything that can be checked without starting a broker. Returns warnings.

    Reads the certificates, the password file, the rights file, and the files of bridges.
    `listener_urls` and `more_streams` are those of flags. Raises SettingsError.
    """
    broker, users = settings.of(BrokerSettings), settings.of(UsersSettings)
    streams = [*settings.all_of(StreamSettings), *more_streams]
    bridges = settings.all_of(BridgeSettings)

    def check_all_listeners() -> None:
        listeners = choose_listeners(settings, broker, listener_urls)
        check_listeners(listeners, has_users=users.has_users)

    warnings: list[str] = []

    def check_access() -> None:
        warnings.extend(load_access(settings, ()).warnings)

    problems = [
        *_problems_of(lambda: check_streams(settings.of(StoreSettings), streams)),
        *_problems_of(check_all_listeners),
        *_problems_of(check_access),
    ]
    if bridges:
        problems += _problems_of(lambda: make_bridge_plans(bridges))
    if problems:
        raise SettingsError(problems)
    return tuple(warnings)


def _problems_of(check: Callable[[], object]) -> tuple[str, ...]:
    """The sentences about what is wrong, if anything is."""
    try:
        check()
    except SettingsError as problem:
        return problem.problems
    except MissingExtra as problem:
        return (str(problem),)
    return ()
