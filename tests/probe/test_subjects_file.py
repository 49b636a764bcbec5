"""The file of `semel probe matrix`: what it accepts, and one sentence for everything else."""

from pathlib import Path

import pytest

from semel.probe.subjects_file import BadSubjects, read_subjects, subject_from_text

GOOD = """
[[subject]]
name = "mosquitto"
broker = "mqtt://localhost:1883"
start = "./start"
stop = "./stop"
versions = ["5.0"]
timeout = 2

[[subject]]
name = "paho"
codec = "python -m adapter"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "subjects.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_subjects_are_read_in_their_order_and_survive_the_way_to_another_process(
    tmp_path: Path,
) -> None:
    first, second = read_subjects(write(tmp_path, GOOD))
    assert (first.name, first.kind, first.versions, first.timeout) == (
        "mosquitto",
        "broker",
        ["5.0"],
        2.0,
    )
    assert (second.kind, second.versions) == ("codec", ["3.1.1", "5.0"])
    for subject in (first, second):
        assert subject_from_text(subject.as_text()) == subject


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no [[subject]]"),
        ("subject = 1", "has no [[subject]]"),
        ("subject = [1]", "subject 1 is not a table"),
        ("=", "is not TOML"),
        ("[[subjects]]\nname='a'", "unknown key 'subjects'"),
        ("[[subject]]\nbroker='mqtt://a'", "subject 1 has no name"),
        ("[[subject]]\nname='a'", "give one of broker, client, codec"),
        ("[[subject]]\nname='a'\nbroker='mqtt://a'\ncodec='x'", "give one of"),
        ("[[subject]]\nname='a'\nbroker='localhost'", "the address has no scheme"),
        ("[[subject]]\nname='a'\ncodec='x'\nstart='y'", "only a broker has start"),
        ("[[subject]]\nname='a'\ncodec=1", "codec is not a text"),
        ("[[subject]]\nname='a'\ncodec='x'\nversions=['4']", "versions is not a list of"),
        ("[[subject]]\nname='a'\ncodec='x'\nversions=[]", "versions is not a list of"),
        ("[[subject]]\nname='a'\ncodec='x'\ntimeout=0", "timeout is not a number of seconds"),
        ("[[subject]]\nname='a'\ncodec='x'\ntimeout=true", "timeout is not a number of seconds"),
        ("[[subject]]\nname='a'\ncodec='x'\nport=1", "unknown key 'port'"),
        ("[[subject]]\nname='a'\ncodec='x'\n" * 2, "two subjects have the name 'a'"),
    ],
)
def test_what_is_wrong_is_named_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadSubjects) as caught:
        read_subjects(write(tmp_path, text))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSubjects, match=r"none\.toml: No such file"):
        read_subjects(tmp_path / "none.toml")
