"""The recording of the demo: it shows what a terminal showed, and the one in docs/ is complete."""

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from semel.lab.demo_reconciliation import Verdict
from tests.lab.demo_recording import (
    COLUMNS,
    PICTURE,
    ROWS,
    Content,
    Screen,
    captured,
    incomplete,
    picture,
    thinned,
)

SVG = "{http://www.w3.org/2000/svg}"
# A demo in short: an event, a line that is updated in place, and the result.
CHUNKS = [
    (0.5, "starting <semel> & up\r\n"),
    (1.0, "\r\x1b[K1 s published 1"),
    (9.0, "\r\x1b[K9 s published 22"),
    (12.0, "\r\x1b[Kkill -9 broker\r\n\r\x1b[K12 s"),
    (20.0, "\r\x1b[Kpublished 50\r\n"),
]


def screen_of(*chunks: tuple[float, str]) -> list[Content]:
    screen = Screen()
    for now, text in chunks:
        screen.write(text, now)
    return screen.contents


def test_a_line_that_is_updated_in_place_has_several_contents() -> None:
    assert screen_of(*CHUNKS) == [
        Content(0, "starting <semel> & up", 0.5),
        Content(1, "1 s published 1", 1.0, 9.0),
        Content(1, "9 s published 22", 9.0, 12.0),
        Content(1, "kill -9 broker", 12.0),
        Content(2, "12 s", 12.0, 20.0),
        Content(2, "published 50", 20.0),
    ]


def test_what_is_overwritten_at_once_was_never_seen() -> None:
    assert screen_of((1.0, "a"), (1.0, "\rb"), (2.0, "\rb")) == [Content(0, "b", 1.0)]


def test_a_shorter_text_covers_the_start_of_a_longer_one() -> None:
    assert screen_of((1.0, "abcdef\rXY"))[-1].text == "XYcdef"


@pytest.mark.parametrize("text", ["\x1b[2J", "\x1b[1;1H", "a\tb", "\x07"])
def test_what_the_screen_does_not_know_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="the recording does not know"):
        screen_of((0.0, text))


@pytest.mark.parametrize(
    ("data", "rest"),
    [
        (b"abc", b""),
        ("· ".encode(), b""),
        ("a·".encode()[:-1], b"\xc2"),
        ("€".encode()[:2], b"\xe2\x82"),
        (b"a\x1b", b"\x1b"),
        (b"a\x1b[", b"\x1b["),
        (b"a\x1b[K", b""),
    ],
)
def test_a_character_or_sequence_that_is_cut_waits_for_its_rest(data: bytes, rest: bytes) -> None:
    assert incomplete(data) == rest


def test_chunks_that_follow_at_once_come_together() -> None:
    assert thinned([(0.0, "a"), (0.5, "b"), (1.0, "c"), (1.5, "d")], 1.0) == [
        (0.0, "ab"),
        (1.0, "cd"),
    ]


def test_a_command_runs_on_a_terminal_of_that_size() -> None:
    program = "import os, sys; print(*os.get_terminal_size(), sys.stdout.isatty()); sys.exit(3)"
    chunks, code = captured([sys.executable, "-c", program])
    assert code == 3
    assert "".join(text for _, text in chunks) == f"{COLUMNS} {ROWS} True\r\n"


def shown_texts(svg: str) -> list[str]:
    """The texts of a picture that are visible without motion: those of the end."""
    root = ElementTree.fromstring(svg)
    return [
        each.text or ""
        for each in root.iter(f"{SVG}text")
        if "past" not in each.get("class", "").split()
    ]


def test_a_picture_without_motion_shows_the_end() -> None:
    svg = picture(CHUNKS, command="semel demo", speed=2.0)
    title, *lines = shown_texts(svg)
    assert title == "semel demo: 20 s, shown 2 times as fast"
    assert lines == ["$ semel demo", "starting <semel> & up", "kill -9 broker", "published 50"]


def test_a_picture_shows_each_content_at_its_time() -> None:
    svg = picture(CHUNKS, command="semel demo", speed=2.0)
    # Ten seconds, and the end for eight more.
    assert "animation: 18.0s" in svg
    # From 4.5 to 6 seconds.
    assert "0%{visibility:hidden}25%{visibility:visible}33.33%{visibility:hidden}" in svg


def test_a_picture_scrolls_when_its_lines_are_used_up() -> None:
    lines = [(float(number), f"{number}\r\n") for number in range(ROWS + 3)]
    svg = picture(lines, command="semel demo", speed=1.0)
    moves = re.findall(r"%\{transform:translateY\((-\d+)px\)", svg)
    assert [int(each) for each in moves][:3] == [-19, -38, -57]
    assert 'style="transform:translateY(-57px)"' in svg


def test_the_picture_in_docs_is_of_a_demo_in_which_nothing_was_lost() -> None:
    svg = PICTURE.read_text("utf-8")
    lines = shown_texts(svg)
    assert lines[1] == "$ semel demo"
    found = re.fullmatch(
        r"published ([\d,]+) · redelivered by faults ([\d,]+) · recorded ([\d,]+) · landed ([\d,]+)"
        r" · lost 0 · duplicated 0",
        lines[-1],
    )
    assert found is not None
    published, redelivered, recorded, landed = (
        int(each.replace(",", "")) for each in found.groups()
    )
    assert lines[-1] == str(Verdict(published, redelivered, recorded, landed, 0, 0, (), 0))
    assert published == recorded == landed == 50_000
    assert lines[-2] == "killed: Spark 1, broker 2, sealer 2"
    assert sum("kill -9" in line for line in lines) == 5
    for link in (Path("README.md"), Path("docs/start/demo.md")):
        text = (PICTURE.parents[2] / link).read_text("utf-8")
        assert "images/demo.svg" in text
        assert lines[-1] in text


def test_the_picture_in_docs_is_small_and_loads_and_runs_nothing() -> None:
    svg = PICTURE.read_text("utf-8")
    assert len(svg) < 100_000
    assert not re.search(r"/(home|root|tmp)/", svg)
    assert not re.search(r"<script|<image|<foreignObject|href|url\(|@import|\son\w+=", svg)
    assert "prefers-color-scheme: dark" in svg
    assert "prefers-reduced-motion: reduce" in svg
