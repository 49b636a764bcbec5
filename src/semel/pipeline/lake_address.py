"""Where lakes are: one address for people, and what delta-rs wants to know of it.

A lake is a folder or an address of an object store, and a table is a folder of it. People write
the address of a lake as they write that of a root, in the form that pyarrow reads:

    semel-data/lake                                       a folder; file:///srv/lake too
    s3://bucket/lake?endpoint_override=host:9000&scheme=http&region=eu-1
    gs://bucket/lake
    abfs://container@account.dfs.core.windows.net/lake

Keys may be in it (`s3://key:secret@bucket/…`), but are better left to the environment, which
delta-rs reads as pyarrow does. delta-rs takes options beside an address, not in it, and calls them
by other names: `split_address` translates. An option that it could not obey is refused by name:
what is written would be elsewhere, or be written in another way, than was asked. The few that say
only how pyarrow opens files and makes buckets (`…_WITHOUT_EFFECT`) mean nothing to a table: they
are allowed, so that root and lake can have one address, and do nothing.

Addresses go to people without user, password and options (`semel.store.roots.without_secrets`),
and what delta-rs says about a problem through `said`, which makes one line of it. An address of
which it is not certain where its secret ends is refused by `read_address`, as that of a root is.

delta-rs does not fsync. On a folder of this machine `settle_log` makes up for it: what a commit
names reaches the disk, then the commit, then the folders in which both are.
"""

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote

from semel.extras import need
from semel.pipeline.errors import TableError
from semel.store.roots import (
    OBJECT_STORES,
    RootError,
    check_path,
    read_address,
    without_secrets,
)

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# How an address begins for Hadoop, and after pathlib has made one slash of two.
_HADOOP: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_NOT_IN_NAMES: Final = "/\\?#%:"
# delta-rs takes these in the path of a folder for an escaped character, and looks elsewhere.
# In the path of a table delta-rs takes these for parts of an address: it finds no history there.
_MISREAD: Final = re.compile(r"%[0-9A-Fa-f]{2}|[#?\\]")
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_AZURE_HOSTS: Final = (".dfs.core.windows.net", ".blob.core.windows.net")

# Options of pyarrow's that change nothing in a table: how files are opened, buckets made.
_S3_WITHOUT_EFFECT: Final = (
    "allow_bucket_creation",
    "allow_bucket_deletion",
    "allow_delayed_open",
    "smart_defaults",
)
_S3_OPTIONS: Final = ("endpoint_override", "region", "scheme")
_GOOGLE_OPTIONS: Final = ("endpoint_override", "retry_limit_seconds", "scheme")
_GOOGLE_WITHOUT_EFFECT: Final = ("project_id",)
_AZURE_OPTIONS: Final = (
    "client_id",
    "client_secret",
    "credential_kind",
    "enable_tls",
    "tenant_id",
)
_AZURE_CREDENTIAL: Final = ("client_id", "client_secret", "tenant_id")
# Which of pyarrow's kinds can be told to delta-rs, and how. The others it cannot be held to: it
# looks at the environment, and takes what it finds there.
_AZURE_KINDS: Final[dict[str, dict[str, str]]] = {
    "default": {},
    "anonymous": {"azure_skip_signature": "true"},
    "cli": {"azure_use_azure_cli": "true"},
}
_AZURE_WITHOUT_EFFECT: Final = ("background_writes",)


# --- addresses ------------------------------------------------------------------------------------


def local_folder(address: str) -> Path | None:
    """The folder of this machine that an address names; None: it names an object store.

    Raises TableError for an address that can name neither.
    """
    if not address:
        raise TableError("the lake is empty: give a folder or an address such as s3://bucket/lake")
    if not _SCHEME.match(address):
        try:
            check_path(address)
        except RootError as problem:
            raise TableError(str(problem)) from None
        folder = Path(address).absolute()
    else:
        parts = _parts(address)
        if parts.scheme.lower() in OBJECT_STORES:
            return None
        shown = without_secrets(address)
        if parts.scheme.lower() != "file":
            known = ", ".join(f"{each}://" for each in ("file", *OBJECT_STORES))
            raise TableError(f"{shown} is no lake: give a folder or one of {known}")
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise TableError(f"{shown} names no folder of this machine: write file:///folder")
        folder = Path(unquote(parts.path))
    misread = _MISREAD.search(str(folder))
    if misread is not None:
        raise TableError(
            f"{folder} can hold no Delta table: rename the folder with {misread[0][0]} in its name"
        )
    return folder


def _parts(address: str) -> SplitResult:
    try:
        return read_address(address)
    except RootError as problem:
        raise TableError(str(problem)) from None


def checkpoint_folder(location: str) -> Path | None:
    """Where Spark keeps a checkpoint; None: not on this machine.

    Spark takes what it is given as it is: nothing in it is escaped.
    """
    address = _HADOOP.match(location)
    if address is None:
        return Path(location)
    if address[1].lower() != "file":
        return None
    return Path("/" + location[len(address[0]) :].lstrip("/"))


def check_table_name(table: str) -> None:
    """Raise TableError if no table can have this name: it is the name of a folder."""
    if (
        not table
        or table.startswith((".", "_"))
        or not table.isprintable()
        or any(sign in table for sign in _NOT_IN_NAMES)
    ):
        signs = " ".join(_NOT_IN_NAMES)
        raise TableError(
            f"{table!r} cannot name a table: it must not be empty, begin with '.' or '_', or "
            f"contain one of {signs}"
        )


def table_address(lake: str, table: str) -> str:
    """The address of a table of a lake, with the options of the lake. Raises TableError."""
    check_table_name(table)
    if local_folder(lake) is not None and not _SCHEME.match(lake):
        return str(Path(lake) / table)
    place, mark, options = lake.partition("?")
    return f"{place.rstrip('/')}/{table}{mark}{options}"


def split_address(address: str) -> tuple[str, dict[str, str]]:
    """The address of a lake or table for delta-rs, and its storage options. Raises TableError.

    A folder is returned with its whole path, and needs no options. For a bucket of Amazon's whose
    region neither address nor environment tells, the region is asked for over the network.
    """
    folder = local_folder(address)
    if folder is not None:
        return str(folder), {}
    parts = _parts(address)
    shown = without_secrets(address)
    if parts.fragment or "#" in address:
        raise TableError(f"{shown} contains '#', which no address may")
    given = _given(shown, parts.query)
    scheme = parts.scheme.lower()
    user, password, host = _user(parts.netloc)
    if not host:
        raise TableError(f"{shown} names no bucket")
    if scheme == "s3":
        _check_options(shown, given, _S3_OPTIONS, _S3_WITHOUT_EFFECT)
        return f"s3://{host}{parts.path}", _s3(shown, host, user, password, given)
    if scheme in ("gs", "gcs"):
        _check_options(shown, given, _GOOGLE_OPTIONS, _GOOGLE_WITHOUT_EFFECT)
        return f"gs://{host}{parts.path}", _google(shown, user, password, given)
    _check_options(shown, given, _AZURE_OPTIONS, _AZURE_WITHOUT_EFFECT)
    return _azure(shown, user, password, host, parts.path, given)


def _user(netloc: str) -> tuple[str, str, str]:
    """User, password and host, the first two unescaped."""
    before, _, host = netloc.rpartition("@")
    user, _, password = before.partition(":")
    return unquote(user), unquote(password), host


def _given(shown: str, query: str) -> dict[str, str]:
    """The options of an address."""
    if not query:
        return {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    except ValueError:
        raise TableError(f"{shown}: write its options as ?name=value&name=value") from None
    given: dict[str, str] = {}
    for name, value in pairs:
        if name in given:
            raise TableError(f"{shown}: option {name!r} of the address is given twice")
        if not value:
            raise TableError(f"{shown}: option {name!r} of the address is empty: leave it out")
        given[name] = value
    return given


def _check_options(
    shown: str, given: dict[str, str], known: tuple[str, ...], without_effect: tuple[str, ...]
) -> None:
    for name in given:
        if name not in known and name not in without_effect:
            raise TableError(
                f"{shown}: option {name!r} of the address is not one of a lake: it may have "
                f"{', '.join(known)}"
            )


def _endpoint(shown: str, given: dict[str, str]) -> str | None:
    """The URL of another server than the usual one; None: the usual one."""
    server = given.get("endpoint_override")
    scheme = given.get("scheme", "https")
    if scheme not in ("http", "https"):
        raise TableError(f"{shown}: option 'scheme' of the address is http or https")
    if server is None:
        return None
    return server.rstrip("/") if "://" in server else f"{scheme}://{server}"


def _check_scheme(shown: str, given: dict[str, str], endpoint: str | None) -> None:
    """The usual server is asked by https, another one as its URL says."""
    used = "http" if endpoint is not None and endpoint.startswith("http://") else "https"
    if given.get("scheme", used) != used:
        raise TableError(
            f"{shown}: option 'scheme' of the address is {given['scheme']}, but the server is "
            f"asked by {used}: name the server beside it, endpoint_override=host:port"
        )


def _s3(shown: str, bucket: str, user: str, password: str, given: dict[str, str]) -> dict[str, str]:
    options = {}
    if bool(user) != bool(password):
        raise TableError(f"{shown}: give both key and secret in the address, or neither")
    if user:
        options["aws_access_key_id"] = user
        options["aws_secret_access_key"] = password
    # pyarrow reads both variables, and asks for no leave to use http.
    endpoint = _endpoint(shown, given) or _variable("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    _check_scheme(shown, given, endpoint)
    if endpoint is not None:
        options["aws_endpoint_url"] = endpoint
        if endpoint.startswith("http://"):
            options["aws_allow_http"] = "true"
    if "region" in given:
        options["aws_region"] = given["region"]
    elif _variable("AWS_REGION", "AWS_DEFAULT_REGION") is None:
        options["aws_region"] = "us-east-1" if endpoint is not None else _region(bucket)
    return options


def _variable(*names: str) -> str | None:
    """The first of these variables that is set."""
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _region(bucket: str) -> str:
    fs = need("pyarrow.fs", extra="sql", by="a lake on an object store")
    try:
        return str(fs.resolve_s3_region(bucket))
    except OSError:
        # The first use of the bucket says what is wrong with it.
        return "us-east-1"


def _google(shown: str, user: str, password: str, given: dict[str, str]) -> dict[str, str]:
    if password or user not in ("", "anonymous"):
        raise TableError(f"{shown}: the address of a Google bucket has no user but 'anonymous'")
    options = {}
    if user:
        options["google_skip_signature"] = "true"
    endpoint = _endpoint(shown, given)
    _check_scheme(shown, given, endpoint)
    if endpoint is not None:
        options["google_base_url"] = endpoint
        if endpoint.startswith("http://"):
            options["allow_http"] = "true"
    seconds = given.get("retry_limit_seconds")
    if seconds is not None:
        if not _SECONDS.fullmatch(seconds) or float(seconds) == 0:
            raise TableError(
                f"{shown}: option 'retry_limit_seconds' of the address is a number of seconds "
                "more than 0, such as 30 or 1.5"
            )
        options["retry_timeout"] = f"{seconds}s"
    return options


def _azure(
    shown: str, user: str, password: str, host: str, path: str, given: dict[str, str]
) -> tuple[str, dict[str, str]]:
    """pyarrow's four forms: with the account in the host, or before it, or on a server of its own.

    abfs://[:key@]account.dfs.core.windows.net/container/…
    abfs://container[:key]@account.dfs.core.windows.net/…
    abfs://account[:key]@server:port/container/…
    abfs://account[:key]@container/…
    """
    options = {}
    is_secure = _is_secure(shown, given)
    suffix = next((each for each in _AZURE_HOSTS if host.endswith(each)), None)
    if suffix is not None:
        account = host.removesuffix(suffix)
        container, rest = (user, path) if user else _first_folder(path)
    elif "." in host or ":" in host:
        account = user
        container, rest = _first_folder(path)
        scheme = "https" if is_secure else "http"
        options["azure_endpoint"] = f"{scheme}://{host}/{account}"
        if not is_secure:
            options["allow_http"] = "true"
    else:
        account, container, rest = user, host, path
    if not is_secure and "azure_endpoint" not in options:
        raise TableError(
            f"{shown}: option 'enable_tls' of the address is false only for a server of your own: "
            "Azure's is asked by https"
        )
    if not account or not container:
        raise TableError(
            f"{shown} names no account or no container: "
            "write abfs://container@account.dfs.core.windows.net/folder"
        )
    options["azure_storage_account_name"] = account
    if password:
        options["azure_storage_account_key"] = password
    return f"az://{container}{rest}", options | _azure_credential(shown, given)


def _is_secure(shown: str, given: dict[str, str]) -> bool:
    """Whether Azure's server is to be asked by https, by what pyarrow takes for yes and no."""
    word = given.get("enable_tls", "true").lower()
    if word not in ("true", "1", "false", "0"):
        raise TableError(f"{shown}: option 'enable_tls' of the address is true or false")
    return word in ("true", "1")


def _azure_credential(shown: str, given: dict[str, str]) -> dict[str, str]:
    """Who asks, if no key of the account says it. What pyarrow refuses is refused here, too."""
    named = [name for name in _AZURE_CREDENTIAL if name in given]
    kind = given.get("credential_kind")
    if kind is not None:
        if kind not in _AZURE_KINDS:
            raise TableError(
                f"{shown}: option 'credential_kind' of the address of a lake is one of "
                f"{', '.join(_AZURE_KINDS)}: without it, the environment says who asks"
            )
        if named:
            raise TableError(
                f"{shown}: option {named[0]!r} of the address cannot be given with credential_kind"
            )
        return _AZURE_KINDS[kind]
    if named not in ([], ["client_id"], [*_AZURE_CREDENTIAL]):
        raise TableError(
            f"{shown}: option {named[-1]!r} of the address is given with all of "
            f"{', '.join(_AZURE_CREDENTIAL)}, or client_id alone"
        )
    return {f"azure_storage_{name}": given[name] for name in named}


def _first_folder(path: str) -> tuple[str, str]:
    first, slash, rest = path.strip("/").partition("/")
    return first, slash + rest
