"""Addresses of lakes and tables, and their translation for delta-rs.

A lake is a folder or a prefix in an object store; each table is a folder below it. Users
write the address of a lake like that of a root, in the form that pyarrow reads:

    semel-data/lake                                       a folder; also file:///srv/lake
    s3://bucket/lake?endpoint_override=host:9000&scheme=http&region=eu-1
    gs://bucket/lake
    abfs://container@account.dfs.core.windows.net/lake

An address may contain keys (`s3://key:secret@bucket/…`), but the environment is a better place for
them; delta-rs reads it as pyarrow does. delta-rs takes options separately and under other names:
`split_address` translates. An option that delta-rs cannot honor is an error that names it, because
data would otherwise be written elsewhere or in another way than requested. Options that only say
how pyarrow opens files and creates buckets (`…_WITHOUT_EFFECT`) do not concern a table. They are
allowed, so that a root and a lake can share one address, and ignored.

Messages show addresses without user, password and options (`semel.store.roots.without_secrets`).
`read_address` refuses an address if it is unclear where its secret ends.
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
# The start of an address as Hadoop writes it, and after pathlib has merged two slashes.
_HADOOP: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_NOT_IN_NAMES: Final = "/\\?#%:"
# delta-rs parses a path as a URL: it would unescape the first, and cut the path at the others.
_MISREAD: Final = re.compile(r"%[0-9A-Fa-f]{2}|[#?\\]")
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_AZURE_HOSTS: Final = (".dfs.core.windows.net", ".blob.core.windows.net")

# Options of pyarrow that do not affect a table: how it opens files and creates buckets.
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
# pyarrow's kinds of credentials that delta-rs has an option for. For all others delta-rs uses what
# it finds in the environment.
_AZURE_KINDS: Final[dict[str, dict[str, str]]] = {
    "default": {},
    "anonymous": {"azure_skip_signature": "true"},
    "cli": {"azure_use_azure_cli": "true"},
}
_AZURE_WITHOUT_EFFECT: Final = ("background_writes",)


# --- addresses ------------------------------------------------------------------------------------


def local_folder(address: str) -> Path | None:
    """The local folder that an address names, or None if it names an object store.

    Raises TableError for an address that names neither.
    """
    if not address:
        raise TableError(
            "the address of the lake is empty: give a folder, or an address such as"
            " s3://bucket/lake"
        )
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
            raise TableError(f"{shown} is not a lake: give a folder, or one of {known}")
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise TableError(f"{shown} is not a local folder: write file:///folder")
        folder = Path(unquote(parts.path))
    misread = _MISREAD.search(str(folder))
    if misread is not None:
        raise TableError(
            f"{folder} cannot hold a Delta table: rename the folder that has {misread[0][0]} in"
            " its name"
        )
    return folder


def _parts(address: str) -> SplitResult:
    try:
        return read_address(address)
    except RootError as problem:
        raise TableError(str(problem)) from None


def checkpoint_folder(location: str) -> Path | None:
    """The local folder of a Spark checkpoint, or None if it is not local.

    Spark does not unescape the location.
    """
    address = _HADOOP.match(location)
    if address is None:
        return Path(location)
    if address[1].lower() != "file":
        return None
    return Path("/" + location[len(address[0]) :].lstrip("/"))


def check_table_name(table: str) -> None:
    """Raise TableError if this cannot be the name of a table, which is that of a folder."""
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
    """The address of a table in a lake, with the options of the lake. Raises TableError."""
    check_table_name(table)
    if local_folder(lake) is not None and not _SCHEME.match(lake):
        return str(Path(lake) / table)
    place, mark, options = lake.partition("?")
    return f"{place.rstrip('/')}/{table}{mark}{options}"


def split_address(address: str) -> tuple[str, dict[str, str]]:
    """The address of a lake or table for delta-rs, and its storage options. Raises TableError.

    A folder is returned as an absolute path, without options. The region of an Amazon bucket is
    looked up over the network if neither the address nor the environment has it.
    """
    folder = local_folder(address)
    if folder is not None:
        return str(folder), {}
    parts = _parts(address)
    shown = without_secrets(address)
    if parts.fragment or "#" in address:
        raise TableError(f"{shown} contains '#', which is not allowed in an address")
    given = _given(shown, parts.query)
    scheme = parts.scheme.lower()
    user, password, host = _user(parts.netloc)
    if not host:
        raise TableError(f"{shown} has no bucket")
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
                f"{shown}: option {name!r} of the address does not apply to a lake; use "
                f"{', '.join(known)}"
            )


def _endpoint(shown: str, given: dict[str, str]) -> str | None:
    """The URL of a server other than the provider's own, or None."""
    server = given.get("endpoint_override")
    scheme = given.get("scheme", "https")
    if scheme not in ("http", "https"):
        raise TableError(f"{shown}: option 'scheme' of the address must be http or https")
    if server is None:
        return None
    return server.rstrip("/") if "://" in server else f"{scheme}://{server}"


def _check_scheme(shown: str, given: dict[str, str], endpoint: str | None) -> None:
    """Raise TableError if option `scheme` contradicts the server, which uses https by default."""
    used = "http" if endpoint is not None and endpoint.startswith("http://") else "https"
    if given.get("scheme", used) != used:
        raise TableError(
            f"{shown}: option 'scheme' of the address is {given['scheme']}, but the server uses"
            f" {used}: name the server with endpoint_override=host:port"
        )


def _s3(shown: str, bucket: str, user: str, password: str, given: dict[str, str]) -> dict[str, str]:
    options = {}
    if bool(user) != bool(password):
        raise TableError(f"{shown}: give both key and secret in the address, or neither")
    if user:
        options["aws_access_key_id"] = user
        options["aws_secret_access_key"] = password
    # pyarrow reads both variables, and uses http without further permission.
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
        # The first request to the bucket reports the problem.
        return "us-east-1"


def _google(shown: str, user: str, password: str, given: dict[str, str]) -> dict[str, str]:
    if password or user not in ("", "anonymous"):
        raise TableError(f"{shown}: the only user in the address of a Google bucket is 'anonymous'")
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
                f"{shown}: option 'retry_limit_seconds' of the address must be a number of seconds "
                "greater than 0, such as 30 or 1.5"
            )
        options["retry_timeout"] = f"{seconds}s"
    return options


def _azure(
    shown: str, user: str, password: str, host: str, path: str, given: dict[str, str]
) -> tuple[str, dict[str, str]]:
    """pyarrow's four forms, in which the account is the host, the user, or on a private server.

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
            f"{shown}: option 'enable_tls' of the address can be false only for your own server: "
            "Azure requires https"
        )
    if not account or not container:
        raise TableError(
            f"{shown} lacks the account or the container: "
            "write abfs://container@account.dfs.core.windows.net/folder"
        )
    options["azure_storage_account_name"] = account
    if password:
        options["azure_storage_account_key"] = password
    return f"az://{container}{rest}", options | _azure_credential(shown, given)


def _is_secure(shown: str, given: dict[str, str]) -> bool:
    """Whether to use https, by the words that pyarrow accepts as true and false."""
    word = given.get("enable_tls", "true").lower()
    if word not in ("true", "1", "false", "0"):
        raise TableError(f"{shown}: option 'enable_tls' of the address must be true or false")
    return word in ("true", "1")


def _azure_credential(shown: str, given: dict[str, str]) -> dict[str, str]:
    """The credentials other than an account key. Refuses what pyarrow refuses."""
    named = [name for name in _AZURE_CREDENTIAL if name in given]
    kind = given.get("credential_kind")
    if kind is not None:
        if kind not in _AZURE_KINDS:
            raise TableError(
                f"{shown}: option 'credential_kind' of a lake's address must be one of "
                f"{', '.join(_AZURE_KINDS)}; without it, the environment has the credentials"
            )
        if named:
            raise TableError(
                f"{shown}: option {named[0]!r} of the address cannot be given with credential_kind"
            )
        return _AZURE_KINDS[kind]
    if named not in ([], ["client_id"], [*_AZURE_CREDENTIAL]):
        raise TableError(
            f"{shown}: option {named[-1]!r} of the address requires all of "
            f"{', '.join(_AZURE_CREDENTIAL)}, or client_id alone"
        )
    return {f"azure_storage_{name}": given[name] for name in named}


def _first_folder(path: str) -> tuple[str, str]:
    first, slash, rest = path.strip("/").partition("/")
    return first, slash + rest
