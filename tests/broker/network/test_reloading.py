"""Users, rights, certificates and limits that are loaded again: all of them, or none."""

import asyncio
import logging
import ssl
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from semel.broker.access import loading
from semel.broker.access.loading import LoadedAccess, load_access, open_access
from semel.broker.access.password_file import parse_entry, set_user
from semel.broker.access.rights_settings import RightsSettings
from semel.broker.access.users_settings import UsersSettings
from semel.broker.authority import Authority
from semel.broker.identity import Identity
from semel.broker.network.administration import ReloadFailed
from semel.broker.network.listener_settings import ListenerSettings
from semel.broker.network.proving import new_proof_pool
from semel.broker.network.reload_queue import ReloadQueue
from semel.broker.network.reloading import LoadedSettings, prepare_reload
from semel.broker.network.server import Server, start_reload
from semel.broker.settings import BrokerSettings
from semel.extras import MissingExtra
from semel.settings import Settings, SettingsError, load
from tests.broker.broker_process import PATIENCE
from tests.broker.core.test_access_password_hashes import mosquitto_2
from tests.broker.tls_files import SERVER_AUTH
from tests.broker.tls_files import Authority as CertificateAuthority

QUICK = mosquitto_2(b"secret", iterations=1)
LOCAL = ListenerSettings(name="a", port=0)


def settings_of(folder: Path, text: str) -> Settings:
    file = folder / "semel.toml"
    file.write_text(text)
    return load((UsersSettings, RightsSettings), path=file, environ={}, flags={})


# --- loading --------------------------------------------------------------------------------------


def test_without_sections_everything_is_open() -> None:
    settings = load((UsersSettings, RightsSettings), path=None, environ={}, flags={})
    access = load_access(settings, [("a", None), ("b", True), ("c", False)])
    assert not access.has_users
    assert access.rights is None
    assert access.anonymous_listeners == {"a", "b"}


def test_with_users_a_listener_lets_anonymous_clients_in_only_if_it_says_so(tmp_path: Path) -> None:
    set_user(tmp_path / "users", parse_entry(f"ann:{QUICK}"))
    settings = settings_of(tmp_path, f"[users]\npassword_file = '{tmp_path / 'users'}'\n")
    access = load_access(settings, [("a", None), ("b", True), ("c", False)])
    assert access.has_users
    assert access.anonymous_listeners == {"b"}


def test_all_mistakes_in_users_and_rights_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("ann\n")
    (tmp_path / "rights").write_text("alow * all #\n")
    text = f"[users]\npassword_file = '{tmp_path / 'users'}'\n"
    text += f"[rights]\nfile = '{tmp_path / 'rights'}'\n"
    with pytest.raises(SettingsError) as refused:
        load_access(settings_of(tmp_path, text), [("a", None)])
    first, second = refused.value.problems
    assert "users" in first
    assert "rights, line 1" in second


def test_a_rights_file_that_everyone_can_change_is_warned_of_at_start_and_reload(
    tmp_path: Path,
) -> None:
    rights = tmp_path / "rights"
    rights.write_text("allow * all #\n")
    settings = settings_of(tmp_path, f'[rights]\nfile = "{rights}"\n')
    for mode, is_warned in ((0o664, False), (0o606, True)):
        rights.chmod(mode)
        access = load_access(settings, [])
        logged: list[str] = []
        access.authority(logged.append)
        assert list(access.warnings) == logged
        loaded = LoadedSettings(BrokerSettings(), (LOCAL,), access)
        remarks = prepare_reload(loaded, BrokerSettings(), [LOCAL]).remarks
        assert list(remarks) == logged
        warning = (
            f"{rights}: every user of this machine can change the rights: run chmod o-w {rights}"
        )
        assert logged == [warning] * is_warned


def test_a_package_that_is_missing_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(settings: UsersSettings) -> None:
        raise MissingExtra("passwords need argon2")

    monkeypatch.setattr(loading, "load_users", fail)
    with pytest.raises(SettingsError, match="argon2"):
        load_access(settings_of(tmp_path, ""), [])


# --- preparing ------------------------------------------------------------------------------------


def loaded_with(
    *listeners: ListenerSettings,
    broker: BrokerSettings | None = None,
    access: LoadedAccess | None = None,
) -> LoadedSettings:
    names = [each.name for each in listeners]
    return LoadedSettings(
        broker or BrokerSettings(), tuple(listeners), access or open_access(names)
    )


def test_changes_that_need_a_restart_are_named() -> None:
    before = [LOCAL, ListenerSettings(name="b", port=1), ListenerSettings(name="gone", port=2)]
    after = [LOCAL, ListenerSettings(name="b", port=3), ListenerSettings(name="new", port=4)]
    broker = BrokerSettings(maximum_retained=7, receive_maximum=9)
    prepared = prepare_reload(loaded_with(*after, broker=broker), BrokerSettings(), before)
    assert prepared.remarks == (
        "[broker] maximum_retained: changed, but takes effect at a restart",
        "listener b: its address changes at a restart",
        "listener new: new, but opens at a restart",
        "listener gone: removed, but stays open until a restart",
    )
    assert list(prepared.layers) == ["a"]
    unchanged = prepare_reload(loaded_with(LOCAL), BrokerSettings(), [LOCAL])
    assert unchanged.remarks == ()


def test_class_12_users_that_are_removed_do_not_open_a_listener_to_strangers() -> None:
    """The listener was allowed at the start because there were users."""
    reachable = ListenerSettings(name="a", host="0.0.0.0", port=0)
    with pytest.raises(SettingsError, match="would let strangers in"):
        prepare_reload(loaded_with(reachable), BrokerSettings(), [reachable])
    # Also one that is no longer in the file, but still open.
    with pytest.raises(SettingsError, match="would let strangers in"):
        prepare_reload(loaded_with(LOCAL), BrokerSettings(), [LOCAL, reachable])
    permitted = ListenerSettings(name="a", host="0.0.0.0", port=0, anonymous=True)
    prepare_reload(loaded_with(permitted), BrokerSettings(), [permitted])


def test_a_certificate_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    CertificateAuthority(tmp_path, "ca").issue("server", usage=SERVER_AUTH)
    good = tls_listener(tmp_path, "server")
    prepare_reload(loaded_with(good), BrokerSettings(), [good])
    bad = tls_listener(tmp_path, "missing")
    with pytest.raises(SettingsError, match=r"listener a: certfile .*missing"):
        prepare_reload(loaded_with(bad), BrokerSettings(), [good])


def tls_listener(folder: Path, name: str) -> ListenerSettings:
    return ListenerSettings(
        name="a",
        transport="tls",
        port=0,
        certfile=folder / f"{name}.pem",
        keyfile=folder / f"{name}.key",
    )


# --- a server that reloads ------------------------------------------------------------------------


def serve_and(
    settings: BrokerSettings,
    listener: ListenerSettings,
    load_settings: Callable[[], LoadedSettings] | None,
    act: Callable[[Server], Coroutine[None, None, None]],
) -> None:
    """Start a server in this process, act, and stop it."""

    async def run() -> None:
        server = Server(settings, listeners=[listener], load_settings=load_settings)
        await server.start()
        try:
            await act(server)
        finally:
            await server.stop()

    asyncio.run(run())


def test_new_connections_get_the_new_certificate_and_the_new_limits(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path, "ca")
    for name in ("first", "second"):
        authority.issue(name, hosts=["localhost"], usage=SERVER_AUTH)
    before = tls_listener(tmp_path, "first")
    after = tls_listener(tmp_path, "second")

    async def common_name(server: Server) -> str:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        address = server.listeners[0].bound_address()
        assert address is not None
        _, writer = await asyncio.open_connection(
            *address, ssl=context, server_hostname="localhost"
        )
        certificate = writer.get_extra_info("peercert")
        writer.transport.abort()
        return str(certificate["subject"][0][0][1])

    async def act(server: Server) -> None:
        assert await common_name(server) == "first"
        generation = server.authority.generation
        assert await server.reload() == ()
        assert await common_name(server) == "second"
        assert server.listeners[0].limits.receive_maximum == 9
        assert server.authority.generation > generation

    broker = BrokerSettings(receive_maximum=9)
    serve_and(BrokerSettings(), before, lambda: loaded_with(after, broker=broker), act)


def test_the_rate_of_a_listener_can_change() -> None:
    limited = ListenerSettings(name="a", port=0, connections_per_second=1.0)

    async def act(server: Server) -> None:
        (listener,) = server.listeners
        assert listener.refuse_new("192.0.2.1") is None
        await server.reload()
        refusals = [listener.refuse_new("192.0.2.1") for _ in range(20)]
        assert refusals[0] is None
        assert "more than 1 connections per second" in str(refusals[-1])
        # The same rate goes on counting.
        await server.reload()
        assert listener.refuse_new("192.0.2.1") is not None

    serve_and(BrokerSettings(), LOCAL, lambda: loaded_with(limited), act)


def test_a_listener_that_would_move_stays_as_it_is() -> None:
    moved = ListenerSettings(name="a", port=1, receive_maximum=9)

    async def act(server: Server) -> None:
        assert await server.reload() == ("listener a: its address changes at a restart",)
        assert server.listeners[0].limits.receive_maximum == BrokerSettings().receive_maximum

    serve_and(BrokerSettings(), LOCAL, lambda: loaded_with(moved), act)


def test_class_12_a_reload_that_fails_changes_nothing_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcomes: list[Exception | None] = [SettingsError(["no such file"]), ValueError("odd"), None]

    def load_again() -> LoadedSettings:
        problem = outcomes.pop(0)
        if problem is not None:
            raise problem
        return loaded_with(LOCAL, broker=BrokerSettings(maximum_retained=3))

    async def act(server: Server) -> None:
        await server.reload_and_log()
        await server.reload_and_log()
        assert server.authority.generation == 0
        # One that has not begun serves both requests.
        await asyncio.gather(server.reload_and_log(), server.reload_and_log())
        assert server.authority.generation == 1

    with caplog.at_level(logging.INFO):
        serve_and(BrokerSettings(), LOCAL, load_again, act)
    lines = [record.getMessage() for record in caplog.records if "reload" in record.getMessage()]
    assert lines == [
        "reload failed, so nothing has changed: no such file",
        "reload failed, so nothing has changed",
        "reloaded users, rights, certificates and limits",
    ]
    assert any("maximum_retained: changed, but" in record.getMessage() for record in caplog.records)


class SlowFiles:
    """Settings whose loading takes as long as the test wants."""

    def __init__(self) -> None:
        self.text = "first"
        self.read: list[str] = []
        self.has_read = threading.Event()
        self.may_continue = threading.Event()

    def load(self) -> LoadedSettings:
        text = self.text
        self.read.append(text)
        self.has_read.set()
        assert self.may_continue.wait(PATIENCE)
        if text == "bad":
            raise SettingsError(["a mistake"])
        return loaded_with(LOCAL)


@pytest.mark.parametrize(("first", "second"), [("1", "2"), ("bad", "good"), ("good", "bad")])
def test_a_request_during_a_reload_reads_the_files_once_more(
    caplog: pytest.LogCaptureFixture, first: str, second: str
) -> None:
    files = SlowFiles()
    files.text = first

    async def act(server: Server) -> None:
        reloads: set[asyncio.Task[None]] = set()
        start_reload(server, reloads, None)
        await asyncio.to_thread(files.has_read.wait, PATIENCE)
        # An operator edits a file that was already read, and asks for it in several ways.
        files.text = second
        requests = [asyncio.create_task(server.reload_and_report()) for _ in range(3)]
        await asyncio.sleep(0)
        for _ in range(100):
            start_reload(server, reloads, None)
        assert len(reloads) == 1
        # One who gives up does not take the reload from the others.
        requests.pop().cancel()
        await asyncio.sleep(0)
        assert files.read == [first]
        files.may_continue.set()
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        assert files.read == [first, second]
        if second == "bad":
            assert all(isinstance(each, ReloadFailed) for each in outcomes)
        else:
            assert outcomes == [["reloaded users, rights, certificates and limits"]] * 2
        await asyncio.gather(*reloads)
        files.text = "third"
        await server.reload_and_report()
        assert files.read[2:] == ["third"]

    with caplog.at_level(logging.INFO):
        serve_and(BrokerSettings(), LOCAL, files.load, act)
    assert caplog.text.count("a reload is running: another one follows it") == 1


def test_a_signal_during_a_reload_reloads_once_more() -> None:
    files = SlowFiles()

    async def act(server: Server) -> None:
        reloads: set[asyncio.Task[None]] = set()
        start_reload(server, reloads, None)
        await asyncio.to_thread(files.has_read.wait, PATIENCE)
        files.text = "second"
        for _ in range(100):
            start_reload(server, reloads, None)
            await asyncio.sleep(0)
        assert len(reloads) == 2
        files.may_continue.set()
        await asyncio.gather(*reloads)
        assert files.read == ["first", "second"]

    serve_and(BrokerSettings(), LOCAL, files.load, act)


def test_a_reload_that_is_cancelled_with_the_loop_is_no_error() -> None:
    async def act() -> None:
        started = asyncio.Event()

        async def hang() -> list[str]:
            started.set()
            await asyncio.Event().wait()
            return []

        queue = ReloadQueue(hang)
        caller = asyncio.create_task(queue.run())
        await started.wait()
        assert not queue.is_waiting
        assert queue._running is not None
        queue._running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller

    asyncio.run(act())


def test_a_request_during_a_reload_is_ignored_if_the_broker_stops() -> None:
    files = SlowFiles()

    async def act(server: Server) -> None:
        first = asyncio.create_task(server.reload_and_report())
        await asyncio.to_thread(files.has_read.wait, PATIENCE)
        second = asyncio.create_task(server.reload_and_report())
        await asyncio.sleep(0)
        server.peers.is_stopping = True
        files.may_continue.set()
        assert await first
        with pytest.raises(ReloadFailed, match="ignored: the broker is stopping"):
            await second
        assert files.read == ["first"]

    serve_and(BrokerSettings(), LOCAL, files.load, act)


def test_without_settings_there_is_nothing_to_reload(caplog: pytest.LogCaptureFixture) -> None:
    async def act(server: Server) -> None:
        await server.reload_and_log()

    serve_and(BrokerSettings(), LOCAL, None, act)
    assert "reload ignored: there is nothing to reload" in caplog.text


# --- threads for proofs ---------------------------------------------------------------------------


def test_an_authority_of_a_program_gets_threads_too() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        for authority in (Authority(), open_access(["a"]).authority(lambda line: None)):
            pool = new_proof_pool(loop, authority, 5.0)
            assert pool.waiting == 0
            pool.close()

    asyncio.run(run())
    assert Authority().rights(Identity("a")) == ""
