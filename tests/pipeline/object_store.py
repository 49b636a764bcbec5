"""An object store for tests: moto's S3 in a process of its own, behind two doors.

The *careful* door is a store as it has to be: a file can be made if and only if it is not there
(If-None-Match), and two that try it at once are told apart. The *careless* door is one that does
not know that header and writes whatever it is given, as some servers and older ones do. Both lead
to the same buckets, and to who has the key.

moto looks whether a file is there and then makes it, in threads, so that two could both find
nothing: requests wait for each other here. It is a process because a library that waits for an
answer may hold the interpreter.
"""

import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs
from urllib.request import urlopen

KEY: Final = "AKIDOFTHETESTS"
# The key of somebody who may look at everything and change nothing.
READER: Final = "AKIDOFAREADER"
SECRET: Final = "the/very+secret=sauce"
# As people have to write it in an address.
SECRET_IN_ADDRESS: Final = "the%2Fvery%2Bsecret%3Dsauce"
REGION: Final = "us-east-1"
CREDENTIAL: Final = re.compile(r"Credential=([^/]+)/")
UNKNOWN_KEY: Final = (
    "InvalidAccessKeyId",
    "The AWS Access Key Id you provided does not exist in our records.",
)

# Where the careful door tells what was asked of it since the last time.
REQUESTS: Final = "/-requests"

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Request(NamedTuple):
    """A request: its method, `bucket/key`, and what is listed if it lists."""

    method: str
    path: str
    prefix: str

    @property
    def is_list(self) -> bool:
        """Whether it lists keys."""
        return self.method == "GET" and bool(self.prefix)


@dataclass(frozen=True)
class Store:
    """Where it is, and what has to be in an address to reach it."""

    careful: str
    careless: str

    def address(
        self, path: str, *, careless: bool = False, key: str = KEY, server: str | None = None
    ) -> str:
        """The address of `bucket/folder`, with key, secret and server."""
        where = server or (self.careless if careless else self.careful)
        options = f"endpoint_override={where}&scheme=http&region={REGION}"
        return f"s3://{key}:{SECRET_IN_ADDRESS}@{path}?{options}"

    def files(self, path: str) -> dict[str, bytes]:
        """All that is below `bucket/folder`, by its name below that."""
        bucket, _, folder = path.partition("/")
        found = {}
        for page in self._client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=folder
        ):
            for each in page.get("Contents", ()):
                answer = self._client.get_object(Bucket=bucket, Key=each["Key"])
                found[each["Key"].removeprefix(folder)] = answer["Body"].read()
        return found

    @contextmanager
    def counted(self) -> Iterator["list[Request]"]:
        """What is asked of the careful door meanwhile is in the list, when this ends."""
        found: list[Request] = []
        self._take_requests()
        yield found
        found.extend(Request(*each) for each in self._take_requests())

    def _take_requests(self) -> list[list[str]]:
        with urlopen(f"http://{self.careful}{REQUESTS}") as answer:
            taken: list[list[str]] = json.load(answer)
        return taken

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        self._client.create_bucket(Bucket=name)

    @cached_property
    def _client(self) -> Any:
        # Not by what is tested here: it sees what there is, and as what.
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=f"http://{self.careful}",
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )


@contextmanager
def running() -> Iterator[Store]:
    """A store while it is needed. It ends with this process, whatever happens to it."""
    program = [sys.executable, str(Path(__file__))]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            yield Store(**json.loads(server.stdout.readline()))
        finally:
            server.communicate(b"")


# --- the process ----------------------------------------------------------------------------------


def serve() -> None:
    """Serve until standard input ends."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = one_at_a_time(DomainDispatcherApplication(create_backend_app))
    doors = {
        "careful": counting(for_those_with_a_key(moto)),
        "careless": for_those_with_a_key(without_condition(moto)),
    }
    where = {}
    for name, application in doors.items():
        server = make_server("127.0.0.1", 0, application, threaded=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where[name] = f"127.0.0.1:{server.server_port}"
    print(json.dumps(where), flush=True)
    sys.stdin.read()


def one_at_a_time(application: Application) -> Application:
    """Nobody comes between a look and what follows from it."""
    lock = threading.Lock()

    def answer(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with lock:
            return list(application(request, start))

    return answer


def counting(application: Application) -> Application:
    """Keeps what is asked, until somebody wants to know."""
    seen: list[tuple[str, str, str]] = []

    def answer(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = request["PATH_INFO"]
        if path == REQUESTS:
            taken, seen[:] = list(seen), []
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(taken).encode()]
        prefix = parse_qs(request.get("QUERY_STRING", "")).get("prefix", [""])[0]
        seen.append((request["REQUEST_METHOD"], path.strip("/"), prefix))
        return application(request, start)

    return answer


def without_condition(application: Application) -> Application:
    """What a store does that has never heard of put-if-absent."""

    def answer(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        request.pop("HTTP_IF_NONE_MATCH", None)
        return application(request, start)

    return answer


def for_those_with_a_key(application: Application) -> Application:
    """To others it says what Amazon's does."""

    def answer(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        named = CREDENTIAL.search(request.get("HTTP_AUTHORIZATION", ""))
        key = "" if named is None else named[1]
        if key == KEY or (key == READER and request["REQUEST_METHOD"] in ("GET", "HEAD")):
            return application(request, start)
        # A client is to have sent all before it is answered.
        request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))
        start("403 Forbidden", [("Content-Type", "application/xml")])
        code, said = ("AccessDenied", "Access Denied") if key == READER else UNKNOWN_KEY
        whose = f"<AWSAccessKeyId>{key}</AWSAccessKeyId>"
        error = f"<Error><Code>{code}</Code><Message>{said}</Message>{whose}</Error>"
        return [f'<?xml version="1.0" encoding="UTF-8"?>\n{error}'.encode()]

    return answer


if __name__ == "__main__":
    serve()
