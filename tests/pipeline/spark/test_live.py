"""The ingest beside a driver: who starts it, what it survives, and what it ends with."""

import fcntl
import io
import os
import pickle
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType
from pyspark.sql.worker.plan_data_source_read import write_read_func_and_partitions

import semel
from semel.broker.authority import Authority
from semel.broker.identity import Identity
from semel.client.ingest_plan import DATA_FOLDER
from semel.mqtt.reasons import NOT_AUTHORIZED
from semel.pipeline.live_folder import CONNECTED, CONNECTING, ENDED, FAILED, IngestStatus
from semel.pipeline.source import MqttSource
from tests.client.ingests import publish
from tests.client.mosquitto import NEEDS_MOSQUITTO, mosquitto
from tests.kills.brokers import free_port
from tests.kills.ingesting import Load
from tests.pipeline.living import (
    PATIENCE,
    STREAM,
    child_of,
    driving,
    ingest_ended,
    intruding,
    is_running,
    make_broker,
    place_of,
    recorded,
    rows,
    status_of,
    until,
    waits_for_a_lock,
)


class NoSecrets(Authority):
    """Nobody may subscribe to what is secret."""

    def subscribe(self, identity: Identity, topic_filter: str, *, qos: int) -> int:
        return NOT_AUTHORIZED if topic_filter.startswith("secret") else qos


def options_of(port: int, **more: str) -> dict[str, str]:
    """Options for a broker on this machine, with segments after a moment."""
    found = {"url": f"mqtt://127.0.0.1:{port}", "topics": "plant/#", "sealAfter": "20ms"}
    return {**found, "durability": "os", "longestWait": "50ms", **more}


def messages(first: int, last: int) -> list[tuple[str, str, int]]:
    """Topic, payload and QoS, which is 1 or 2."""
    return [(f"plant/{each}", str(each), 1 + each % 2) for each in range(first, last + 1)]


def names(last: int) -> list[str]:
    return [str(each) for each in range(1, last + 1)]


# --- exactly once, over drivers and workers -------------------------------------------------------


def live_through_two_drivers(port: int, root: Path, **more: str) -> None:
    """Messages come while a driver reads, while nobody does, and while the next one does."""
    options = options_of(port, **more)
    with driving() as driver:
        driver.worker().attach(options, root)
        publish(port, *messages(1, 20))
        # Some may be on their way when the driver dies.
        driver.kill()
    first = ingest_ended(root)
    assert first.state == ENDED
    assert not is_running(first.pid)
    publish(port, *messages(21, 40))
    with driving() as driver:
        driver.worker().attach(options, root)
        publish(port, *messages(41, 60))
        recorded(root, 60)
        second = status_of(root)
    assert ingest_ended(root).state == ENDED
    # QoS 1 may overtake QoS 2 on its way through a broker.
    assert sorted(int(row.payload) for row in rows(root)) == [*range(1, 61)]
    assert {row.client_id for row in rows(root)} == {first.counters["client_id"]}
    assert second.counters["client_id"] == first.counters["client_id"]
    assert second.counters["sessions_lost"] == 0
    assert second.pid != first.pid


def test_each_message_is_recorded_once_when_the_driver_is_killed_and_another_follows(
    tmp_path: Path,
) -> None:
    with make_broker() as broker:
        live_through_two_drivers(broker.port, tmp_path)
        (one,) = broker.sessions()
        assert one.client_id == rows(tmp_path)[0].client_id
        assert not one.is_connected
        broker.assert_clean(one.client_id)


@NEEDS_MOSQUITTO
def test_each_message_of_mosquitto_is_recorded_once_as_well(tmp_path: Path) -> None:
    with mosquitto(tmp_path, []) as (port,):
        live_through_two_drivers(port, tmp_path / "root", mqttVersion="3.1.1")


def test_a_worker_that_is_killed_takes_no_ingest_with_it(tmp_path: Path) -> None:
    with make_broker() as broker, driving() as driver:
        options = options_of(broker.port)
        worker = driver.worker()
        worker.attach(options, tmp_path)
        before = status_of(tmp_path)
        worker.kill()
        publish(broker.port, *messages(1, 10))
        assert recorded(tmp_path, 10) == names(10)
        assert driver.worker().attach(options, tmp_path) == []
        assert status_of(tmp_path).run == before.run
        assert status_of(tmp_path).state == CONNECTED


def test_a_query_begins_when_the_broker_has_subscribed_its_ingest(tmp_path: Path) -> None:
    """Until the SUBACK, messages may be missed, and whoever publishes cannot know that."""
    with make_broker() as broker, driving() as driver:
        broker.delay(1.0, "SUBSCRIBE")
        driver.worker().attach(options_of(broker.port), tmp_path)
        publish(broker.port, *messages(1, 10))
        assert recorded(tmp_path, 10) == names(10)


def test_a_second_query_reads_from_the_ingest_that_is_there(tmp_path: Path) -> None:
    with make_broker() as broker, driving() as driver:
        options = options_of(broker.port)
        one, other = driver.worker(), driver.worker()
        one.attach(options, tmp_path)
        before = status_of(tmp_path)
        # Spark writes names as it likes, and filters have no order.
        other.attach({name.upper(): text for name, text in options.items()}, tmp_path)
        other.check(options, tmp_path)
        assert status_of(tmp_path).run == before.run
        assert len(broker.packets("CONNECT")) == 1


def test_of_queries_that_begin_at_once_one_starts_the_ingest(tmp_path: Path) -> None:
    with make_broker() as broker, driving() as one, driving() as other:
        options = options_of(broker.port)
        workers = [driver.worker() for driver in (one, other) for _ in range(3)]
        with ThreadPoolExecutor(len(workers)) as pool:
            logs = pool.map(lambda worker: worker.attach(options, tmp_path), workers)
            assert [*logs] == [[]] * len(workers)
        assert len(broker.packets("CONNECT")) == 1
        assert status_of(tmp_path).state == CONNECTED


def test_the_ingest_is_given_nothing_of_the_worker_but_its_task(tmp_path: Path) -> None:
    with make_broker() as broker, driving() as driver:
        worker = driver.worker()
        worker.attach(options_of(broker.port), tmp_path)
        pid = status_of(tmp_path).pid
        assert os.getsid(pid) == pid
        assert os.getsid(worker.pid) != pid

        def sockets_of(process: int) -> set[str]:
            links = [os.readlink(each) for each in Path(f"/proc/{process}/fd").iterdir()]
            return {each for each in links if each.startswith("socket:")}

        assert sockets_of(worker.pid)
        assert not sockets_of(pid) & sockets_of(worker.pid)
        assert status_of(tmp_path).driver == driver.process.pid


def test_the_ingest_is_found_by_any_way_to_its_root(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "way").symlink_to(tmp_path / "root")
    with make_broker() as broker, driving() as driver:
        options = options_of(broker.port)
        driver.worker().attach(options, tmp_path / "root")
        driver.worker().attach(options, tmp_path / "way")
        assert len(broker.packets("CONNECT")) == 1


# --- its end --------------------------------------------------------------------------------------


def test_the_ingest_ends_when_the_last_query_has_and_not_before(tmp_path: Path) -> None:
    with make_broker() as broker, driving() as driver:
        options = options_of(broker.port, linger="0")
        one, other = driver.worker(), driver.worker()
        one.attach(options, tmp_path)
        other.attach(options, tmp_path)
        before = status_of(tmp_path)
        one.end()
        publish(broker.port, *messages(1, 5))
        assert recorded(tmp_path, 5) == names(5)
        until(lambda: status_of(tmp_path).counters["received"] == 5)
        assert status_of(tmp_path).state == CONNECTED
        other.end()
        last = ingest_ended(tmp_path)
        assert (last.state, last.run) == (ENDED, before.run)
        assert driver.process.poll() is None
        # The session stays, and what comes meanwhile is for the next one.
        publish(broker.port, *messages(6, 10))
        driver.worker().attach(options, tmp_path)
        assert recorded(tmp_path, 10) == names(10)


def test_an_ingest_that_was_killed_is_started_again_by_the_next_look(tmp_path: Path) -> None:
    with make_broker() as broker, driving() as driver:
        options = options_of(broker.port)
        worker = driver.worker()
        worker.attach(options, tmp_path)
        before = status_of(tmp_path)
        assert worker.check(options, tmp_path) == []
        publish(broker.port, *messages(1, 200))
        os.kill(before.pid, signal.SIGKILL)
        until(lambda: not place_of(tmp_path).is_alive())
        publish(broker.port, *messages(201, 220))
        (line,) = worker.check(options, tmp_path)
        assert "has ended, and is started again" in line
        assert status_of(tmp_path).run != before.run
        found = recorded(tmp_path, 220)
        # QoS 1 is at least once.
        assert {*found} == {*names(220)}
        twice = {each for each in found if found.count(each) > 1}
        assert all(1 + int(each) % 2 == 1 for each in twice)


def test_a_second_driver_goes_on_when_the_first_takes_its_ingest_along(tmp_path: Path) -> None:
    with make_broker() as broker, driving() as one, driving() as other:
        options = options_of(broker.port)
        one.worker().attach(options, tmp_path)
        worker = other.worker()
        worker.attach(options, tmp_path)
        before = status_of(tmp_path)
        one.kill()
        ingest_ended(tmp_path)
        worker.check(options, tmp_path)
        assert status_of(tmp_path).run != before.run
        publish(broker.port, *messages(1, 5))
        assert recorded(tmp_path, 5) == names(5)


def test_kills_of_drivers_workers_and_ingests_lose_and_double_nothing(tmp_path: Path) -> None:
    chance = random.Random(6)
    with make_broker() as broker, ExitStack() as drivers:
        options = options_of(broker.port)
        driver = drivers.enter_context(driving())
        worker = driver.worker()
        worker.attach(options, tmp_path)

        def is_stored(least: int) -> bool:
            return int(status_of(tmp_path).counters.get("stored", 0)) >= least

        with Load(broker.port) as load:
            for whom in ["driver", "worker", "ingest"] * 2:
                least = status_of(tmp_path).counters.get("stored", 0) + chance.randrange(1, 100)
                until(partial(is_stored, least))
                if whom == "ingest":
                    os.kill(status_of(tmp_path).pid, signal.SIGKILL)
                    until(lambda: not place_of(tmp_path).is_alive())
                    worker.check(options, tmp_path)
                    continue
                if whom == "driver":
                    driver.kill()
                    driver = drivers.enter_context(driving())
                else:
                    worker.kill()
                worker = driver.worker()
                worker.attach(options, tmp_path)
        until(lambda: {*load.sent} <= {row.payload for row in rows(tmp_path)})
        found = [row.payload for row in rows(tmp_path)]
        # QoS 1 is at least once, and only a kill of the ingest can make it more.
        assert {*found} == {*load.sent}
        exactly = [each for each in load.sent if each.startswith("2-")]
        assert [each for each in found if each.startswith("2-")] == exactly
        assert len(exactly) > 50


# --- other options --------------------------------------------------------------------------------


def test_other_topics_are_refused_while_another_query_reads(tmp_path: Path) -> None:
    with make_broker() as broker, driving() as driver:
        options = options_of(broker.port)
        others = options_of(broker.port, topics="store/#", keepAlive="5")
        one, other = driver.worker(), driver.worker()
        one.attach(options, tmp_path)
        before = status_of(tmp_path)
        sentence = other.refused(others, tmp_path)
        assert sentence.startswith("OptionError: options keepAlive and topics: another query")
        assert '["plant/#"]' in sentence
        assert status_of(tmp_path).run == before.run
        # And are taken as soon as that one has ended.
        one.end()
        other.attach(others, tmp_path)
        now = status_of(tmp_path)
        assert now.run != before.run
        assert now.counters["client_id"] == before.counters["client_id"]
        until(lambda: [each[1] for each in broker.subscriptions()] == ["store/#"])
        publish(broker.port, ("store/1", "1", 2), ("plant/1", "2", 2), ("store/3", "3", 1))
        assert recorded(tmp_path, 2) == ["1", "3"]


@pytest.mark.parametrize("how", ["killed", "failed"])
def test_other_topics_are_refused_while_a_query_waits_for_its_ingest(
    how: str, tmp_path: Path
) -> None:
    with make_broker() as broker, driving() as driver:
        options = options_of(broker.port)
        others = options_of(broker.port, topics="store/#")
        one, other = driver.worker(), driver.worker()
        one.attach(options, tmp_path)
        before = status_of(tmp_path)
        if how == "killed":
            os.kill(before.pid, signal.SIGKILL)
        else:
            broker.take_over(before.counters["client_id"])
        ingest_ended(tmp_path)
        sentence = other.refused(others, tmp_path)
        assert sentence.startswith("OptionError: option topics: another query uses")
        assert '["plant/#"]' in sentence
        assert status_of(tmp_path).run == before.run
        if how == "killed":
            assert "is started again" in one.check(options, tmp_path)[0]
            publish(broker.port, *messages(1, 5))
            assert recorded(tmp_path, 5) == names(5)
            one.end()
        else:
            # A query that has failed waits for nothing, and its process may still be there.
            assert "session taken over" in one.refused(options, tmp_path, "check")
        other.attach(others, tmp_path)
        until(lambda: [each[1] for each in broker.subscriptions()] == ["store/#"])


def test_the_same_topics_are_taken_while_a_query_waits_for_its_ingest(tmp_path: Path) -> None:
    with make_broker() as broker, driving() as driver:
        options = options_of(broker.port)
        one, other = driver.worker(), driver.worker()
        one.attach(options, tmp_path)
        before = status_of(tmp_path)
        os.kill(before.pid, signal.SIGKILL)
        ingest_ended(tmp_path)
        assert other.attach(options, tmp_path) == []
        now = status_of(tmp_path)
        assert now.run != before.run
        assert one.check(options, tmp_path) == []
        assert status_of(tmp_path).run == now.run


def test_a_query_that_was_refused_is_refused_again_and_hinders_nobody(tmp_path: Path) -> None:
    with make_broker() as broker, driving() as driver:
        options = options_of(broker.port)
        others = options_of(broker.port, topics="store/#")
        one, other = driver.worker(), driver.worker()
        one.attach(options, tmp_path)
        sentence = other.refused(others, tmp_path)
        assert other.refused(others, tmp_path, "check") == sentence
        assert status_of(tmp_path).identity["topics"] == '["plant/#"]'
        one.end()
        # While the process of that one is still there.
        driver.worker().attach(options_of(broker.port, topics="yard/#"), tmp_path)
        assert status_of(tmp_path).identity["topics"] == '["yard/#"]'


@pytest.mark.parametrize("is_there", [True, False])
def test_queries_that_begin_at_once_with_new_topics_do_not_hinder_each_other(
    is_there: bool, tmp_path: Path
) -> None:
    with make_broker() as broker, driving() as driver:
        old = driver.worker()
        old.attach(options_of(broker.port, linger="1h" if is_there else "0"), tmp_path)
        old.end()
        if not is_there:
            ingest_ended(tmp_path)
        options = options_of(broker.port, topics="store/#")
        workers = [driver.worker() for _ in range(4)]
        with ThreadPoolExecutor(len(workers)) as pool:
            with place_of(tmp_path).starting():
                logs = pool.map(lambda worker: worker.attach(options, tmp_path), workers)
                until(lambda: all(waits_for_a_lock(worker.pid) for worker in workers))
            assert [*logs] == [[]] * len(workers)
        assert len(broker.packets("CONNECT")) == 2
        until(lambda: [each[1] for each in broker.subscriptions()] == ["store/#"])


def test_an_ingest_with_other_topics_in_the_place_of_its_own_fails_a_query(tmp_path: Path) -> None:
    with make_broker() as broker, driving() as driver:
        options = options_of(broker.port)
        worker = driver.worker()
        worker.attach(options, tmp_path)
        os.kill(status_of(tmp_path).pid, signal.SIGKILL)
        ingest_ended(tmp_path)
        with intruding(options_of(broker.port, topics="store/#"), tmp_path):
            sentence = worker.refused(options, tmp_path, "check")
            assert sentence.startswith("PipelineError: option topics: another ingest has replaced")
            assert '["store/#"]' in sentence


def test_an_ingest_with_the_same_topics_in_the_place_of_its_own_serves_a_query(
    tmp_path: Path,
) -> None:
    with make_broker() as broker, driving() as driver:
        options = options_of(broker.port)
        worker = driver.worker()
        worker.attach(options, tmp_path)
        os.kill(status_of(tmp_path).pid, signal.SIGKILL)
        ingest_ended(tmp_path)
        with intruding(options, tmp_path) as status:
            assert worker.check(options, tmp_path) == []
            assert status_of(tmp_path).run == status.run


def test_the_client_id_is_the_one_that_is_given(tmp_path: Path) -> None:
    with make_broker() as broker, driving() as driver:
        driver.worker().attach(options_of(broker.port, clientId="driver-1"), tmp_path)
        assert broker.clients() == ["driver-1"]
        other = driver.worker()
        sentence = other.refused(options_of(broker.port, clientId="driver-2"), tmp_path)
        assert sentence.startswith("OptionError: option clientId: ")


# --- what cannot be -------------------------------------------------------------------------------


def test_a_password_that_is_wrong_is_told_and_nobody_sees_one(tmp_path: Path) -> None:
    with make_broker(users={"ann": "right-word"}) as broker, driving() as driver:
        worker = driver.worker()
        wrong = options_of(broker.port, username="ann", password="wrong-word")
        sentence = worker.refused(wrong, tmp_path)
        assert sentence.startswith("PipelineError: the ingest for option url failed: ")
        assert "bad user name or password" in sentence
        assert not place_of(tmp_path).is_alive()
        # The same sentence for who looks later.
        assert status_of(tmp_path).state == FAILED
        assert worker.refused(wrong, tmp_path, "check") == sentence
        right = options_of(broker.port, username="ann", password="right-word")
        worker.attach(right, tmp_path)
        status = status_of(tmp_path)
        assert status.state == CONNECTED
        seen = Path(f"/proc/{status.pid}/cmdline").read_bytes()
        seen += Path(f"/proc/{status.pid}/environ").read_bytes()
        for file in place_of(tmp_path).folder.iterdir():
            assert file.stat().st_mode & 0o077 == 0
            seen += file.read_bytes()
        assert b"right-word" not in seen
        assert b"wrong-word" not in seen
        # A password does not tell one ingest from another.
        other = f"mqtt://ann:right-word@127.0.0.1:{broker.port}"
        assert "option url" in driver.worker().refused({**right, "url": other}, tmp_path)


def test_a_broker_that_is_not_there_yet_is_told_once_and_waited_for(tmp_path: Path) -> None:
    port = free_port()
    with driving() as driver:
        options = options_of(port)
        worker = driver.worker()
        (line,) = worker.attach(options, tmp_path)
        assert f"mqtt://127.0.0.1:{port}" in line
        assert "trying again" in line
        assert status_of(tmp_path).state == CONNECTING
        assert worker.check(options, tmp_path) == []
        with make_broker(port=port) as broker:
            until(lambda: status_of(tmp_path).state == CONNECTED)
            assert worker.check(options, tmp_path) == ["the ingest: connected to the broker again"]
            publish(broker.port, *messages(1, 5))
            assert recorded(tmp_path, 5) == names(5)


def test_an_ingest_that_fails_later_fails_the_query_with_its_sentence(tmp_path: Path) -> None:
    with make_broker() as broker, driving() as driver:
        options = options_of(broker.port)
        worker = driver.worker()
        worker.attach(options, tmp_path)
        broker.take_over(status_of(tmp_path).counters["client_id"])
        ingest_ended(tmp_path)
        sentence = worker.refused(options, tmp_path, "check")
        assert "session taken over" in sentence
        # A new query is a new attempt.
        driver.worker().attach(options, tmp_path)
        publish(broker.port, *messages(1, 5))
        assert recorded(tmp_path, 5) == names(5)


def test_a_subscription_that_is_refused_fails_the_query(tmp_path: Path) -> None:
    with make_broker(authority=NoSecrets()) as broker, driving() as driver:
        options = options_of(broker.port, topics="secret/#")
        worker = driver.worker()
        answer = worker.call("attach", options, tmp_path)
        if answer.error is None:
            # It comes after the connection.
            ingest_ended(tmp_path)
            answer = worker.call("check", options, tmp_path)
        assert answer.error is not None
        assert "refused the subscription to secret/#" in answer.error[1]
        # As long as there is another, the ingest goes on, and says so.
        both = {**options, "topics": "secret/#,plant/#"}
        log = worker.attach(both, tmp_path)
        until(lambda: status_of(tmp_path).warnings != [])
        (line,) = log + worker.check(both, tmp_path)
        assert "refused the subscription to secret/#" in line
        assert worker.check(both, tmp_path) == []
        publish(broker.port, *messages(1, 5))
        assert recorded(tmp_path, 5) == names(5)


def test_a_store_that_semel_ingest_has_is_told(tmp_path: Path) -> None:
    with make_broker() as broker, driving() as driver:
        command = [sys.executable, "-P", "-m", "semel", "ingest", broker.url, "--quiet"]
        command += ["--topic", "plant/#", "--stream", STREAM, "--root", str(tmp_path)]
        other = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": str(Path(semel.__file__).parent.parent)}
        )
        try:
            until(lambda: broker.subscriptions() != [])
            worker = driver.worker()
            sentence = worker.refused(options_of(broker.port), tmp_path)
            assert f"is in use by another process (process {other.pid})" in sentence
            assert "leave out option url" in sentence
        finally:
            other.terminate()
            assert other.wait(PATIENCE) == 0
        worker.attach(options_of(broker.port), tmp_path)


def test_a_root_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / DATA_FOLDER).write_text("a file where a folder should be")
    with make_broker() as broker, driving() as driver:
        sentence = driver.worker().refused(options_of(broker.port), tmp_path)
        assert sentence.startswith("PipelineError: ")
        assert DATA_FOLDER in sentence


def test_an_ingest_that_cannot_even_begin_is_told_by_its_last_words(tmp_path: Path) -> None:
    log = place_of(tmp_path).log
    log.mkdir(parents=True)
    with make_broker() as broker, driving() as driver:
        worker = driver.worker()
        sentence = worker.refused(options_of(broker.port), tmp_path)
        assert sentence.startswith("PipelineError: the ingest ended while starting: IsADirectory")
        log.rmdir()
        worker.attach(options_of(broker.port), tmp_path)


@pytest.mark.parametrize("state", [FAILED, CONNECTED])
def test_the_word_of_one_that_had_the_same_process_number_is_not_that_of_a_new_ingest(
    state: str, tmp_path: Path
) -> None:
    place = place_of(tmp_path)
    place.create()
    with make_broker() as broker, driving() as driver, ThreadPoolExecutor(1) as pool:
        options = options_of(broker.port)
        worker = driver.worker()
        # Shared: nobody is at work, and who wants to begin has to wait.
        with (place.folder / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            refused = pool.submit(worker.refused, options, tmp_path)
            pid = child_of(worker.pid)
            place.write_status(
                IngestStatus("long ago", pid, 1, state, {}, problem="it failed long ago")
            )
            os.kill(pid, signal.SIGKILL)
            sentence = refused.result(PATIENCE)
        assert sentence.startswith("PipelineError: the ingest ended while starting: ")
        worker.attach(options, tmp_path)
        assert status_of(tmp_path).state == CONNECTED
        assert status_of(tmp_path).run != "long ago"


def test_a_session_that_the_store_does_not_know_is_told_with_what_to_do(tmp_path: Path) -> None:
    with make_broker() as broker, driving() as driver:
        options = options_of(broker.port, clientId="one", linger="0")
        worker = driver.worker()
        worker.attach(options, tmp_path / "a")
        worker.end()
        ingest_ended(tmp_path / "a")
        sentence = driver.worker().refused(options, tmp_path / "b")
        assert "another clientId and a new folder (option data)" in sentence
        other = {**options, "clientId": "two"}
        sentence = driver.worker().refused(other, tmp_path / "b")
        assert "belongs to the client 'one': use that clientId, or another folder" in sentence
        driver.worker().attach({**other, "data": str(tmp_path / "store")}, tmp_path / "b")
        assert broker.clients() == ["two"]


# --- secrets --------------------------------------------------------------------------------------


def test_the_tasks_of_a_query_are_given_no_secret_and_its_driver_is(tmp_path: Path) -> None:
    options = {"root": str(tmp_path), "url": "mqtt://ann@host", "topics": "plant/#"}
    source = MqttSource({**options, "password": "hidden-word"})
    schema = StructType([StructField("seq", LongType())])
    # Spark makes the source in one process, and its reader in others.
    given = pickle.dumps(source)
    assert b"hidden-word" in given
    source = pickle.loads(given)
    reader = source.streamReader(schema)
    assert reader._options.live["password"] == "hidden-word"
    task = io.BytesIO()
    write_read_func_and_partitions(
        task,
        reader=reader,
        data_source=source,
        schema=schema,
        max_arrow_batch_size=1000,
        binary_as_bytes=True,
    )
    assert str(tmp_path).encode() in task.getvalue()
    assert b"hidden-word" not in task.getvalue()
    assert b"mqtt://" not in task.getvalue()


# --- the driver -----------------------------------------------------------------------------------


def test_the_driver_is_the_nearest_java_above_the_worker(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.symlink_to(sys.executable)
    inner = "import os; from semel.pipeline.live import driver; print(*driver())"
    # A daemon of Spark's may be between.
    daemon = f"import subprocess, sys; subprocess.run([{sys.executable!r}, '-c', {inner!r}])"
    outer = (
        "import os, subprocess; print(os.getpid(), flush=True);"
        f" subprocess.run([{sys.executable!r}, '-c', {daemon!r}])"
    )
    found = subprocess.run(
        [java, "-c", outer],
        env={**os.environ, "PYTHONPATH": str(Path(semel.__file__).parent.parent)},
        capture_output=True,
        check=True,
        timeout=PATIENCE,
    )
    java_pid, pid, started = found.stdout.split()
    assert pid == java_pid
    assert int(started) > 0


@pytest.mark.parametrize("text", [b"", b"{}", b"[1"])
def test_the_ingest_is_for_live_alone_to_start(text: bytes, tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-P", "-m", "semel.pipeline.live_ingest", str(tmp_path / "x")],
        env={**os.environ, "PYTHONPATH": str(Path(semel.__file__).parent.parent)},
        input=text,
        capture_output=True,
        check=False,
        timeout=PATIENCE,
    )
    assert found.returncode == 2
    assert found.stderr == b'semel.pipeline.live_ingest is started by format("mqtt")\n'
