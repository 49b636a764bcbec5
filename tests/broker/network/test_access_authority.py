"""ConfiguredAuthority and an HTTP hook on a real socket."""

from dataclasses import replace
from pathlib import Path

from semel.broker.access.failures import (
    HOOK_FAILED,
    HOOK_REFUSED,
)
from semel.broker.access.users_settings import UsersSettings
from semel.broker.identity import (
    HOOK,
)
from semel.mqtt.reasons import (
    BAD_USER_NAME_OR_PASSWORD,
    NOT_AUTHORIZED,
    SERVER_UNAVAILABLE,
)
from tests.broker.core.test_access_authority import OPEN, Desk, write_users
from tests.broker.network.test_access_hooks import answer, serving


def test_the_http_hook_decides_about_users_that_are_not_in_the_file(tmp_path: Path) -> None:
    users_file = write_users(tmp_path)
    with serving(answer(b'{"allow": true, "groups": ["guests"]}')) as service:
        url = f"http://127.0.0.1:{service.port}/"
        settings = UsersSettings(password_file=users_file, http_hook=url, http_hook_timeout=30.0)
        desk = Desk(settings)
        identity = desk.user("eve", b"whatever")
        assert (identity.user_name, identity.proof) == ("eve", HOOK)
        assert identity.groups == ("guests",)
        assert desk.refused("ann", b"guess") == BAD_USER_NAME_OR_PASSWORD
        assert len(service.requests) == 1
        # It did not say who the client is.
        assert desk.refused() == NOT_AUTHORIZED
        assert desk.refused(None, b"whatever") == NOT_AUTHORIZED
        open_desk = Desk(settings, anonymous=OPEN)
        assert open_desk.user(None, b"whatever").user_name is None
    with serving(answer(b'{"allow": true, "user_name": "eve"}')) as service:
        desk = Desk(replace(settings, http_hook=f"http://127.0.0.1:{service.port}/"))
        assert desk.user().user_name == "eve"
    with serving(answer(b'{"allow": false}')) as service:
        desk = Desk(replace(settings, http_hook=f"http://127.0.0.1:{service.port}/"))
        assert desk.refused("eve", b"whatever") == BAD_USER_NAME_OR_PASSWORD
        assert desk.count(HOOK_REFUSED) == 1
    with serving(answer(b"")) as service:
        desk = Desk(replace(settings, http_hook=f"http://127.0.0.1:{service.port}/"))
        assert desk.refused("eve", b"whatever") == SERVER_UNAVAILABLE
        assert desk.count(HOOK_FAILED) == 1
        assert "http_hook did not answer with JSON" in desk.lines[0]
        # That is no failure of the client.
        assert not desk.authority.rate.is_exceeded("192.0.2.7")
