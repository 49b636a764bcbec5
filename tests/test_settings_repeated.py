"""A section of which there may be many: [[room]] in the file, told apart by one of its keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import click
import pytest
from click.testing import CliRunner

from semel.cli.setting_options import options
from semel.settings import (
    SECONDS,
    Flags,
    Section,
    Settings,
    SettingsError,
    check,
    describe,
    load,
    read_one,
    required,
    setting,
    settings_of,
)


def about_floor(floor: str) -> str | None:
    """The rule of a floor."""
    return None if floor in ("ground", "upper") else f"no house has a floor {floor!a}"


@dataclass(frozen=True)
class HouseSettings:
    """The house: a section of which there is one."""

    section: ClassVar[str] = "house"

    owner: str = setting("ann", "Whose it is.")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class RoomSettings:
    """A room: a section of which there may be many."""

    section: ClassVar[str] = "room"
    repeated: ClassVar[str] = "name"

    name: str = required("hall", "What it is called.")
    floor: str = required("ground", "Where it is.", rule=about_floor)
    windows: int = setting(1, "Windows.", minimum=0)
    heated: float | None = setting(None, "How long a day.", unit=SECONDS, maximum=86_400)
    doors: int = setting(1, "Doors.", minimum=0)

    def __post_init__(self) -> None:
        check(self)
        if not self.windows and not self.doors:
            raise SettingsError(["nobody can get out"])


ALL: tuple[type[Section], ...] = (HouseSettings, RoomSettings)
HALL = '[[room]]\nname = "hall"\nfloor = "ground"\n'


def planted(folder: Path, text: str) -> Path:
    path = folder / "semel.toml"
    path.write_text(text, "utf-8")
    return path


def from_file(text: str, folder: Path) -> Settings:
    return load(ALL, path=planted(folder, text), environ={}, flags={})


def problems_of(
    text: str, folder: Path, environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """What is wrong, with the name of the file left out."""
    path = planted(folder, text)
    with pytest.raises(SettingsError) as caught:
        load(ALL, path=path, environ=environ or {}, flags={})
    return tuple(problem.replace(f"{path}, ", "") for problem in caught.value.problems)


def test_every_table_of_the_file_is_there_in_its_order(tmp_path: Path) -> None:
    attic = '[[room]]\nname = "attic"\nfloor = "upper"\nwindows = 0\nheated = "2h"\n'
    settings = from_file(f'{attic}[house]\nowner = "bob"\n{HALL}', tmp_path)
    assert settings.all_of(RoomSettings) == (
        RoomSettings(name="attic", floor="upper", windows=0, heated=7200.0),
        RoomSettings(name="hall", floor="ground"),
    )
    assert settings.of(HouseSettings) == HouseSettings(owner="bob")


@pytest.mark.parametrize(
    "text",
    ["room = [{name = 'hall', floor = 'ground'}]", HALL, HALL.replace("[[room]]", "[[ 'room' ]]")],
)
def test_an_array_may_be_written_in_any_way_that_toml_has(tmp_path: Path, text: str) -> None:
    assert from_file(text, tmp_path).all_of(RoomSettings) == (RoomSettings("hall", "ground"),)


def test_there_are_none_without_a_file_or_a_table(tmp_path: Path) -> None:
    assert load(ALL, path=None, environ={}, flags={}).all_of(RoomSettings) == ()
    assert from_file("[house]\n", tmp_path).all_of(RoomSettings) == ()
    assert from_file("room = []\n", tmp_path).all_of(RoomSettings) == ()


def test_a_program_asks_for_one_or_for_all_of_what_was_loaded() -> None:
    settings = load(ALL, path=None, environ={}, flags={})
    assert settings.all_of(HouseSettings) == (HouseSettings(),)
    with pytest.raises(TypeError, match="RoomSettings is repeated: use all_of"):
        settings.of(RoomSettings)
    with pytest.raises(LookupError, match="RoomSettings was not loaded"):
        load([HouseSettings], path=None, environ={}, flags={}).all_of(RoomSettings)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[room]\nname = 'hall'", 1, "each room is a separate table: write [[room]], not [room]"),
        ("\n[room.hall]", 2, "each room is a separate table: write [[room]], not [room]"),
        ("room.name = 'x'", 1, "each room is a separate table: write [[room]], not [room]"),
        ("room = 1", 1, "each room is a separate table: write [[room]]"),
        ("room = [{name = 'hall'}, 1]", 1, "each room is a separate table: write [[room]]"),
        ("[[house]]", 1, "there is only one house: write [house], not [[house]]"),
        ("house = [{owner = 'bob'}]", 1, "there is only one house: write [house], not [[house]]"),
    ],
)
def test_other_brackets_are_refused_with_those_to_write(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    assert problems_of(text, tmp_path) == (f"line {line}: {words}",)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        # Names.
        (HALL + "window = 2", 4, '[[room]] 1 ("hall") has no key "window"; did you mean windows?'),
        (HALL + "[room.door]", 4, '[[room]] 1 ("hall") has no key "door"; did you mean doors?'),
        (HALL + "[[room.door]]", 4, '[[room]] 1 ("hall") has no key "door"; did you mean doors?'),
        ("[[rom]]", 1, 'there is no section "rom"; did you mean room?'),
        ("windows = 2", 1, "windows is outside of any section; did you mean [[room]] windows?"),
        # Values.
        (HALL + "windows = -1", 4, '[[room]] 1 ("hall") windows is -1, but must be an integer, at'),
        (HALL + "heated = '2d'", 4, '[[room]] 1 ("hall") heated is "2d", but must be a duration'),
        (
            "[[room]]\nname = 1\nfloor = 'upper'",
            2,
            "[[room]] 1 name is 1, but must be a non-empty string",
        ),
        ("[[room]]\nname = ''\nfloor = 'upper'", 2, '[[room]] 1 ("") name is "", but must be a'),
        (
            "[[room]]\nname = 'a'\nfloor = 'third'",
            3,
            '[[room]] 1 ("a") floor is "third", but no house has a floor \'third\'',
        ),
        (
            "[[room]]\nname = 'a'\nfloor = 3",
            3,
            '[[room]] 1 ("a") floor is 3, but must be a non-empty string',
        ),
        # What is missing, what is there twice, and a rule of the section's own.
        ("[[room]]\nfloor = 'upper'", 1, "[[room]] 1 has no name, which is required"),
        ("[[room]]\nname = 'a'", 1, '[[room]] 1 ("a") has no floor, which is required'),
        (HALL + HALL, 5, '[[room]] 2 ("hall") has the name of [[room]] 1'),
        (HALL + "windows = 0\ndoors = 0", 1, '[[room]] 1 ("hall"): nobody can get out'),
    ],
)
def test_a_mistake_is_named_with_its_line_and_its_table(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    (problem,) = problems_of(text, tmp_path)
    assert problem.startswith(f"line {line}: {words}")


def test_lines_and_numbers_are_right_among_many_tables(tmp_path: Path) -> None:
    other = HALL.replace("hall", "attic")
    text = f"{HALL}# a comment\n\n{other}windows = [\n1\n]\n[house]\n[[room]]\n\n  floor = 'cellar'"
    assert [problem.split(" is ")[0] for problem in problems_of(text, tmp_path)] == [
        'line 9: [[room]] 2 ("attic") windows',
        "line 15: [[room]] 3 floor",
        "line 13: [[room]] 3 has no name, which",
    ]


def test_in_one_line_the_number_tells_which_it_is(tmp_path: Path) -> None:
    text = "room = [{name = 'a', floor = 'upper'},\n {name = 'b', floor = 'cellar'}]"
    (problem,) = problems_of(text, tmp_path)
    assert problem.startswith('line 1: [[room]] 2 ("b") floor is "cellar"')
    (problem,) = problems_of("room = [{name = 'a', floor = 'upper'}, {name = 'b'}]", tmp_path)
    assert problem == 'line 1: [[room]] 2 ("b") has no floor, which is required'


def test_a_third_table_of_one_name_is_compared_with_the_first(tmp_path: Path) -> None:
    assert problems_of(HALL * 3, tmp_path) == (
        'line 5: [[room]] 2 ("hall") has the name of [[room]] 1',
        'line 8: [[room]] 3 ("hall") has the name of [[room]] 1',
    )


def test_a_repeated_section_has_no_variables(tmp_path: Path) -> None:
    for variable in ("SEMEL_ROOM_NAME", "SEMEL_ROOM_WINDOWS", "SEMEL_ROOM"):
        assert problems_of(HALL, tmp_path, {variable: "x"}) == (
            f"environment variable {variable}: there is no such setting; "
            "[[room]] can only be set in the file",
        )
    (problem,) = problems_of(HALL, tmp_path, {"SEMEL_HOUSE_OWNR": "x"})
    assert problem.endswith("did you mean SEMEL_HOUSE_OWNER?")


def test_a_repeated_section_has_no_flags() -> None:
    seen: list[Flags] = []

    @click.command
    @options(*ALL)
    def command(config: Path | None, flags: Flags) -> None:
        seen.append(flags)

    result = CliRunner().invoke(command, ["--owner", "eve"], catch_exceptions=False)
    assert result.exit_code == 0
    assert seen == [{"house": {"owner": "eve"}}]
    result = CliRunner().invoke(command, ["--windows", "1"])
    assert result.exit_code == 2
    assert "No such option" in result.output
    with pytest.raises(TypeError, match=r"\[\[room\]\] has no flags"):
        load(ALL, path=None, environ={}, flags={"room": {"windows": "1"}})


def test_the_example_file_has_one_of_them_commented_out() -> None:
    text = describe(ALL)
    assert (
        "\n\n# A room: a section of which there may be many.\n"
        "# May occur several times; this is an example.\n#[[room]]\n\n"
        '# What it is called.\n# A non-empty string. Required.\n#name = "hall"\n\n'
    ) in text
    assert "\n# An integer, at least 0.\n#windows = 1\n" in text
    assert "SEMEL_ROOM" not in text
    assert "SEMEL_HOUSE_OWNER" in text


def test_one_can_be_made_of_texts() -> None:
    given = {"name": "attic", "floor": "upper", "heated": "2h"}
    room = read_one(RoomSettings, given, source="flag --room")
    assert room == RoomSettings(name="attic", floor="upper", heated=7200.0)


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        ({"name": "a"}, ["flag --room: [[room]] has no floor, which is required"]),
        (
            {"name": "", "floor": "cellar"},
            [
                'flag --room: [[room]] name is "", but must be a non-empty string',
                "flag --room: [[room]] floor is \"cellar\", but no house has a floor 'cellar'",
            ],
        ),
        (
            {"name": "a", "floor": "upper", "window": "1"},
            ['flag --room: [[room]] has no key "window"; did you mean windows?'],
        ),
        (
            {"name": "a", "floor": "upper", "windows": "0", "doors": "0"},
            ["flag --room: [[room]]: nobody can get out"],
        ),
    ],
)
def test_one_of_texts_that_are_wrong_is_refused(given: dict[str, str], problems: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        read_one(RoomSettings, given, source="flag --room")
    assert list(caught.value.problems) == problems


def test_one_that_a_program_makes_is_checked_too() -> None:
    with pytest.raises(SettingsError) as caught:
        RoomSettings(name="a", floor="third", windows=-1)
    assert caught.value.problems == (
        "RoomSettings: [[room]] floor is \"third\", but no house has a floor 'third'",
        "RoomSettings: [[room]] windows is -1, but must be an integer, at least 0",
    )
    with pytest.raises(TypeError, match="floor"):
        RoomSettings(name="a")


def test_a_secret_is_not_handed_to_a_rule_that_would_quote_it() -> None:
    @dataclass(frozen=True)
    class SafeSettings:
        section: ClassVar[str] = "safe"
        word: str = setting("ground", "What opens it.", secret=True, rule=about_floor)

    with pytest.raises(SettingsError) as caught:
        load([SafeSettings], path=None, environ={"SEMEL_SAFE_WORD": "hunter2"}, flags={})
    assert "hunter2" not in str(caught.value)
    assert "has a value (a secret, not shown), but must be" in str(caught.value)


def test_a_repeated_section_wrongly_declared_is_a_type_error() -> None:
    @dataclass(frozen=True)
    class Single:
        section: ClassVar[str] = "single"
        name: str = required("a", "Required, but there is one only.")

    @dataclass(frozen=True)
    class Open:
        section: ClassVar[str] = "open"
        repeated: ClassVar[str] = "name"
        name: str = setting("a", "Not required.")

    @dataclass(frozen=True)
    class Nameless:
        section: ClassVar[str] = "nameless"
        repeated: ClassVar[str] = "name"
        title: str = required("a", "Not the name.")

    with pytest.raises(TypeError, match="Single: only a repeated section can have required"):
        settings_of(Single)
    for section in (Open, Nameless):
        with pytest.raises(TypeError, match="'name' is not one of its required keys"):
            settings_of(section)
    assert list(settings_of(RoomSettings))[:2] == ["name", "floor"]
