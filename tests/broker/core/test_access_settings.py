"""[users]: what can be said together, and what cannot."""

from pathlib import Path

import pytest

from semel.broker.access.users_settings import UsersSettings
from semel.settings import SettingsError, load

FILE = Path("users.txt")


def test_without_settings_there_are_no_users() -> None:
    settings = UsersSettings()
    assert not settings.has_users
    assert not settings.has_credentials
    assert settings.bind_client_ids


@pytest.mark.parametrize(
    ("settings", "has_credentials"),
    [
        (UsersSettings(password_file=FILE), True),
        (UsersSettings(password_file=FILE, scram=True), True),
        (UsersSettings(jwt_keys=FILE, jwt_audience="a", jwt_issuer="b"), True),
        (UsersSettings(jwt_secret_file=FILE, jwt_groups_claim="groups"), True),
        (UsersSettings(http_hook="http://127.0.0.1:8000/check?x=1"), True),
        (UsersSettings(http_hook="https://[::1]/", http_hook_cafile=FILE), True),
        (UsersSettings(python_hook="my.users:Checks.check"), True),
        (UsersSettings(certificate_users="common_name"), False),
    ],
)
def test_each_way_to_prove_who_one_is_makes_users(
    settings: UsersSettings, has_credentials: bool
) -> None:
    assert settings.has_users
    assert settings.has_credentials is has_credentials


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"scram": True}, "[users] scram is true, but there is no password_file with its keys"),
        (
            {"http_hook": "http://a/", "python_hook": "a:b"},
            "[users] has both http_hook and python_hook: remove one of them",
        ),
        (
            {"jwt_keys": "a", "jwt_secret_file": "b"},
            "[users] has both jwt_keys and jwt_secret_file: remove one of them",
        ),
        (
            {"jwt_issuer": "a"},
            "[users] jwt_issuer is set, but there is neither jwt_keys nor jwt_secret_file",
        ),
        (
            {"jwt_keys": "a", "jwt_algorithms": ()},
            "[users] jwt_algorithms is empty, so no token could be accepted",
        ),
        (
            {"http_hook": "http://a/", "http_hook_cafile": "b"},
            "[users] http_hook_cafile is set, but http_hook is no https URL",
        ),
        ({"jwt_keys": "a", "jwt_algorithms": ("none",)}, "must be a list of HS256, HS384,"),
        ({"http_hook": "ftp://a/"}, "but must be a URL such as https://auth.example/mqtt"),
        ({"http_hook": "http://"}, "but must be a URL such as"),
        ({"http_hook": "http://a:b/"}, "but is not a URL"),
        ({"http_hook": "http://[a/"}, "but is not a URL"),
        ({"http_hook": "http://a:0/"}, "but must be a URL such as"),
        ({"http_hook": "http://u:p@a/"}, "but must not contain a user name or password"),
        ({"http_hook": "http://a/b c"}, "but must not contain a fragment, spaces or"),
        ({"http_hook": "http://a/#b"}, "but must not contain a fragment, spaces or"),
        ({"http_hook": "http://a/é"}, "but must not contain a fragment, spaces or"),
        ({"python_hook": "a.b"}, "but must be module:function, such as my_users:check"),
        ({"python_hook": "a:b()"}, "but must be module:function"),
        ({"python_hook": ":b"}, "but must be module:function"),
        ({"certificate_users": "subject"}, "must be one of none, common_name"),
    ],
)
def test_what_contradicts_itself_is_one_sentence(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load([UsersSettings], path=None, environ={}, flags={"users": given})
    (problem,) = caught.value.problems
    assert sentence in problem


def test_the_environment_can_set_them() -> None:
    environ = {"SEMEL_USERS_PASSWORD_FILE": "a", "SEMEL_USERS_JWT_ALGORITHMS": "ES256,EdDSA"}
    settings = load([UsersSettings], path=None, environ=environ, flags={}).of(UsersSettings)
    assert settings.password_file == Path("a")
    assert settings.jwt_algorithms == ("ES256", "EdDSA")
