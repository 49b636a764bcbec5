"""An address of a lake means to delta-rs what it means to pyarrow, and shows no secret."""

import os
import traceback
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as fs
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from semel.pipeline.delta_errors import one_line, table_errors
from semel.pipeline.delta_fsync import fsync_commit
from semel.pipeline.delta_log import log_entry
from semel.pipeline.errors import TableError
from semel.pipeline.lake_address import check_table_name, local_folder, split_address, table_address
from tests.store.wrong_secrets import WRONG_SECRETS


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)


# --- addresses ------------------------------------------------------------------------------------


def test_a_folder_needs_no_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert split_address("lake") == (str(tmp_path / "lake"), {})
    assert split_address(f"file://{tmp_path}/a%20b") == (f"{tmp_path}/a b", {})
    assert local_folder(f"file://localhost{tmp_path}") == tmp_path
    assert local_folder("s3://bucket/lake") is None


def test_a_table_is_a_folder_of_its_lake_and_has_its_options() -> None:
    assert table_address("lake", "t") == "lake/t"
    assert table_address("lake/", "t") == "lake/t"
    assert table_address("file:///srv/lake/", "t") == "file:///srv/lake/t"
    assert table_address("s3://b/lake?region=x", "t") == "s3://b/lake/t?region=x"
    assert table_address("s3://k:s@b", "t") == "s3://k:s@b/t"


@pytest.mark.parametrize("name", ["messages", "a b", "ü", "a.b", "a_b", "1"])
def test_a_name_that_can_be_a_folder_can_be_a_table(name: str) -> None:
    check_table_name(name)


@pytest.mark.parametrize(
    "name", ["", "_x", ".x", "a/b", "a\\b", "a?b", "a#b", "a%20b", "a\n", "a:"]
)
def test_another_name_cannot(name: str) -> None:
    with pytest.raises(TableError, match="cannot name a table"):
        check_table_name(name)


_S3_KEYS = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}


@pytest.mark.parametrize(
    ("address", "uri", "options"),
    [
        (
            "s3://bucket/lake?endpoint_override=localhost:9000&scheme=http&region=eu-1",
            "s3://bucket/lake",
            {
                "aws_endpoint_url": "http://localhost:9000",
                "aws_allow_http": "true",
                "aws_region": "eu-1",
            },
        ),
        (
            "s3://key:sec%2Fret@bucket/lake?endpoint_override=https%3A%2F%2Fminio%3A9000",
            "s3://bucket/lake",
            {
                "aws_access_key_id": "key",
                "aws_secret_access_key": "sec/ret",
                "aws_endpoint_url": "https://minio:9000",
                "aws_region": "us-east-1",
            },
        ),
        (
            "s3://bucket/lake?region=eu-1&allow_bucket_creation=true",
            "s3://bucket/lake",
            {"aws_region": "eu-1"},
        ),
        # delta-rs unescapes it, as pyarrow does.
        ("s3://k:s@bucket/a%40b?region=x", "s3://bucket/a%40b", _S3_KEYS | {"aws_region": "x"}),
        ("s3://bucket/a@b?region=x&scheme=https", "s3://bucket/a@b", {"aws_region": "x"}),
        ("gs://bucket/lake", "gs://bucket/lake", {}),
        ("gs://bucket/lake?scheme=https&project_id=p", "gs://bucket/lake", {}),
        (
            "gs://bucket/lake?retry_limit_seconds=1.5",
            "gs://bucket/lake",
            {"retry_timeout": "1.5s"},
        ),
        (
            "gcs://anonymous@bucket/lake?endpoint_override=localhost:1&scheme=http",
            "gs://bucket/lake",
            {
                "google_skip_signature": "true",
                "google_base_url": "http://localhost:1",
                "allow_http": "true",
            },
        ),
        (
            "abfs://box:a%2Bb=@acct.dfs.core.windows.net/lake",
            "az://box/lake",
            {"azure_storage_account_name": "acct", "azure_storage_account_key": "a+b="},
        ),
        (
            "abfss://:k@acct.dfs.core.windows.net/box/lake",
            "az://box/lake",
            {"azure_storage_account_name": "acct", "azure_storage_account_key": "k"},
        ),
        (
            "abfs://acct:k@127.0.0.1:10000/box/lake?enable_tls=false",
            "az://box/lake",
            {
                "azure_endpoint": "http://127.0.0.1:10000/acct",
                "allow_http": "true",
                "azure_storage_account_name": "acct",
                "azure_storage_account_key": "k",
            },
        ),
        (
            "abfs://acct@box/lake?credential_kind=anonymous",
            "az://box/lake",
            {"azure_storage_account_name": "acct", "azure_skip_signature": "true"},
        ),
        (
            "abfs://acct@box/lake?credential_kind=cli&enable_tls=TRUE",
            "az://box/lake",
            {"azure_storage_account_name": "acct", "azure_use_azure_cli": "true"},
        ),
        (
            "abfs://acct@box/lake?credential_kind=default",
            "az://box/lake",
            {"azure_storage_account_name": "acct"},
        ),
        (
            "abfs://acct@127.0.0.1:10000/box/lake?enable_tls=0&client_id=c",
            "az://box/lake",
            {
                "azure_endpoint": "http://127.0.0.1:10000/acct",
                "allow_http": "true",
                "azure_storage_account_name": "acct",
                "azure_storage_client_id": "c",
            },
        ),
        (
            "abfs://acct@box/lake?client_id=c&client_secret=a@b&tenant_id=t",
            "az://box/lake",
            {
                "azure_storage_account_name": "acct",
                "azure_storage_client_id": "c",
                "azure_storage_client_secret": "a@b",
                "azure_storage_tenant_id": "t",
            },
        ),
    ],
)
def test_what_pyarrow_reads_from_an_address_is_told_to_delta_rs(
    address: str, uri: str, options: dict[str, str]
) -> None:
    # pyarrow knows the address as well: it is one form for both.
    fs.FileSystem.from_uri(address)
    assert split_address(address) == (uri, options)


def test_the_environment_is_left_to_speak_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-2")
    assert split_address("s3://bucket/lake") == ("s3://bucket/lake", {})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    # delta-rs wants to be told that http is meant.
    assert split_address("s3://bucket/lake")[1] == {
        "aws_endpoint_url": "http://minio:9000",
        "aws_allow_http": "true",
    }
    # It says how it is asked, and the address may say so, too, but nothing else.
    assert split_address("s3://bucket/lake?scheme=http") == split_address("s3://bucket/lake")
    with pytest.raises(TableError, match=r"'scheme' of the address is https, but .* uses http:"):
        split_address("s3://bucket/lake?scheme=https")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("", "empty"),
        ("ftp://host/lake", "is not a lake"),
        ("file://host/lake", "not a local folder"),
        ("/srv/a%20b/lake", "rename the folder that has % in its name"),
        ("/srv/C#/lake", "rename the folder that has # in its name"),
        ("/srv/what?/lake", "rename the folder that has [?] in its name"),
        ("/srv/a\\\\b/lake", "rename the folder that has"),
        ("s3:///lake", "has no bucket"),
        ("s3://bucket/lake?region", "name=value"),
        ("s3://bucket/lake?tls_ca_file_path=/x", "'tls_ca_file_path'.*endpoint_override"),
        ("s3://bucket/lake?region=x&scheme=ftp&endpoint_override=y", "http or https"),
        ("s3://key@bucket/lake?region=x", "both key and secret"),
        ("s3://bucket/lake#x", "'#'"),
        ("gs://me@bucket/lake", "is 'anonymous'"),
        ("gs://bucket/lake?region=x", "'region'"),
        ("abfs://box/lake", "lacks the account"),
        ("abfs://acct@box/lake?credential_kind=guess", "credential_kind"),
        ("s3://bucket/lake?region=x&scheme=http", "'scheme'.*endpoint_override=host:port"),
        ("s3://bucket/lake?scheme=http&endpoint_override=https://y&region=x", "'scheme'"),
        ("gs://bucket/lake?scheme=http", "'scheme'.*endpoint_override=host:port"),
        ("s3://bucket/lake?region=a&region=b", "'region' of the address is given twice"),
        ("s3://bucket/lake?region=", "'region' of the address is empty"),
        ("gs://bucket/lake?retry_limit_seconds=abc", "'retry_limit_seconds'.*greater than 0"),
        ("gs://bucket/lake?retry_limit_seconds=0.0", "'retry_limit_seconds'.*greater than 0"),
        ("gs://bucket/lake?retry_limit_seconds=-1", "'retry_limit_seconds'.*greater than 0"),
        ("gs://bucket/lake?retry_limit_seconds=inf", "'retry_limit_seconds'.*greater than 0"),
        ("abfs://box@acct.dfs.core.windows.net/lake?enable_tls=false", "'enable_tls'.*https"),
        ("abfs://acct@box/lake?enable_tls=0", "'enable_tls'.*https"),
        ("abfs://acct@127.0.0.1:1/box/lake?enable_tls=no", "'enable_tls'.*true or false"),
        ("abfs://acct@box/lake?credential_kind=environment", "'credential_kind'.*default, anon"),
        ("abfs://acct@box/lake?credential_kind=managed_identity", "'credential_kind'"),
        ("abfs://acct@box/lake?credential_kind=workload_identity", "'credential_kind'"),
        ("abfs://acct@box/lake?credential_kind=cli&client_id=c", "'client_id'.*credential_kind"),
        ("abfs://acct@box/lake?client_id=c&client_secret=s", "'client_secret'.*tenant_id"),
        ("abfs://acct@box/lake?tenant_id=t", "'tenant_id'.*client_secret"),
        ("http://[host/lake", "an address cannot have"),
    ],
)
def test_an_address_that_cannot_be_obeyed_is_refused_in_one_sentence(
    address: str, why: str
) -> None:
    with pytest.raises(TableError, match=why) as caught:
        split_address(address)
    assert "\n" not in str(caught.value)


def test_no_sentence_shows_a_secret() -> None:
    for address in (
        "s3://key:hidden@bucket/lake?tls_ca_dir_path=hidden",
        "s3://hidden@bucket/lake?region=hidden",
        "abfs://acct:hidden@box/lake?credential_kind=guess&client_secret=hidden",
        "gs://me:hidden@bucket/lake",
        "s3://key:hidden@bucket/lake?region=x#hidden",
    ):
        with pytest.raises(TableError) as caught:
            split_address(address)
        assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(("address", "shown", "words"), WRONG_SECRETS)
def test_a_wrong_secret_is_refused_and_not_shown_by_whoever_reads_the_address(
    address: str, shown: str, words: str
) -> None:
    for read in (split_address, local_folder, lambda lake: table_address(lake, "t")):
        with pytest.raises(TableError, match=f"^{shown}: .*{words}") as caught:
            read(address)
        assert "hid" not in "".join(traceback.format_exception(caught.value, limit=0))
        assert "\n" not in str(caught.value)


# --- what is said ---------------------------------------------------------------------------------


def test_what_delta_rs_says_becomes_one_line() -> None:
    text = "Kernel error\n  \x1b[31m↳\x1b[0m 404 Not Found\n  <?xml version='1.0'?><Secret/>"
    assert one_line(OSError(text)) == "Kernel error 404 Not Found"
    assert one_line(OSError("Json error\n   0: <unknown>\n  1: x")) == "Json error"
    assert one_line(OSError("")) == "OSError"


def test_what_delta_rs_raises_names_the_table(tmp_path: Path) -> None:
    address = str(tmp_path / "t")
    with pytest.raises(TableError, match=f"there is no table at {address}"), table_errors(address):
        DeltaTable(address)
    write_deltalake(address, pa.table({"a": [1]}))
    (tmp_path / "t" / "_delta_log" / log_entry(0)).write_text("{broken")
    with (
        pytest.raises(TableError, match=f"{address}: its log is damaged") as caught,
        table_errors(address),
    ):
        DeltaTable(address)
    assert "<unknown>" not in str(caught.value)
    # What is not delta-rs's comes through.
    with pytest.raises(KeyError), table_errors(address):
        raise KeyError


# --- lasting --------------------------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were synced, in order. They are."""
    found: list[str] = []
    really = os.fsync

    def fsync(descriptor: int) -> None:
        found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_commit_lasts_when_its_files_do_and_then_it_and_its_folders(
    tmp_path: Path, synced: list[str]
) -> None:
    address = str(tmp_path / "lake" / "t")
    rows = pa.table({"a": [1, 2], "p": ["x x", "y"]})
    write_deltalake(address, rows, partition_by=["p"])
    assert synced == []
    fsync_commit(address, 0, files=True)
    log = f"{address}/_delta_log"
    files = sorted(str(path) for path in Path(address).rglob("*.parquet"))
    assert len(files) == 2
    assert sorted(synced[:2]) == files
    assert sorted(synced[2:4]) == sorted(str(Path(each).parent) for each in files)
    assert synced[4:] == [f"{log}/{0:020}.json", log, address, str(tmp_path / "lake")]


def test_a_checkpoint_of_the_log_lasts_too(tmp_path: Path, synced: list[str]) -> None:
    address = str(tmp_path / "t")
    write_deltalake(
        address,
        pa.table({"a": [1]}),
        commit_properties=CommitProperties(app_transactions=[Transaction("x", 1)]),
    )
    DeltaTable(address).create_checkpoint()
    fsync_commit(address, 0)
    names = [Path(each).name for each in synced]
    assert names[:3] == [f"{0:020}.json", f"{0:020}.checkpoint.parquet", "_last_checkpoint"]


def test_a_commit_that_is_not_there_cannot_last(tmp_path: Path) -> None:
    address = str(tmp_path / "t")
    write_deltalake(address, pa.table({"a": [1]}))
    with pytest.raises(FileNotFoundError):
        fsync_commit(address, 1)
    # On an object store there is nothing to do.
    fsync_commit("s3://bucket/lake", 1)
