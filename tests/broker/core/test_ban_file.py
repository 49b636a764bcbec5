"""The file of bans: written atomically, private, and refused with its line if it is bad."""

import stat
from pathlib import Path

import pytest

from semel.broker.bans import ADDRESS, CLIENT, Ban, Bans
from semel.broker.network.administration import Administration, AdministrationUnusable
from semel.broker.network.ban_file import (
    MAXIMUM_LINE,
    BanFileUnusable,
    ban_values,
    read_bans,
    write_bans,
)
from semel.broker.network.control_settings import AuditSettings, ControlSettings


def read(path: Path, now: float = 0.0) -> list[Ban]:
    bans = Bans()
    read_bans(path, bans, now)
    return bans.all(now)


def test_bans_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "bans.jsonl"
    assert read(path) == []
    written = [
        Ban(CLIENT, "ü\n\x00", reason="why", created_at=1.5, created_by="user ID 0", expires_at=9),
        Ban(ADDRESS, "10.0.0.0/8"),
    ]
    write_bans(path, written)
    assert [ban_values(each) for each in read(path)] == [ban_values(each) for each in written]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # Those that have expired meanwhile are forgotten.
    assert [each.value for each in read(path, 9.0)] == ["10.0.0.0/8"]
    write_bans(path, [])
    assert read(path) == []
    assert [each.name for each in tmp_path.iterdir()] == ["bans.jsonl"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("hello", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "it is not a JSON object"),
        ('{"kind": "client", "value": "a", "until": 5}', "'until' is not a key of a ban"),
        ('{"value": "a"}', "'' cannot be banned: only a client, a user or an address can"),
        ('{"kind": "client"}', "the client to ban must have 1 to 65535 characters"),
        ('{"kind": "client", "value": 5}', "value is not a string"),
        ('{"kind": "client", "value": "a", "expires_at": "never"}', "expires_at is not a number"),
        ('{"kind": "client", "value": "a", "created_at": true}', "created_at is not a number"),
        ('{"kind": "address", "value": "10.0.0.1/8"}', "is an address inside the network"),
    ],
)
def test_a_bad_line_is_named_at_the_start(tmp_path: Path, line: str, sentence: str) -> None:
    path = tmp_path / "bans.jsonl"
    path.write_text(f'{{"kind": "client", "value": "a"}}\n\n{line}\n')
    with pytest.raises(BanFileUnusable) as caught:
        read(path)
    assert f"{path}, line 3: " in str(caught.value)
    assert sentence in str(caught.value)
    assert str(caught.value).endswith("Correct or delete the line")
    with pytest.raises(AdministrationUnusable, match="line 3"):
        Administration(ControlSettings(), AuditSettings(), tmp_path)


def test_an_endless_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bans.jsonl"
    line = '{"kind": "client", "value": "a"}'
    path.write_text(line.ljust(MAXIMUM_LINE - 1) + "\n")
    assert len(read(path)) == 1
    path.write_text(line.ljust(MAXIMUM_LINE) + "\n")
    with pytest.raises(BanFileUnusable, match="line 1: it has more than 1048576 bytes"):
        read(path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "bans.jsonl"
    path.symlink_to(tmp_path / "other")
    with pytest.raises(BanFileUnusable, match="is a symbolic link"):
        read(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(BanFileUnusable, match="the bans cannot be read"):
        read(path)


def test_an_audit_file_that_cannot_be_opened_is_reported_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(AdministrationUnusable, match=r"\[audit\] file .* cannot be opened"):
        Administration(ControlSettings(), AuditSettings(file=tmp_path / "no" / "file"), None)
