"""Settings come from file, environment and flags, in this order, and every mistake is named."""

import re
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import ClassVar

import click
import pytest
from click.testing import CliRunner

from semel.cli.setting_options import options
from semel.settings import (
    BYTES,
    SECONDS,
    Flags,
    Section,
    Settings,
    SettingsError,
    check,
    describe,
    load,
    setting,
    settings_of,
)
from semel.settings_values import Value, toml_text, written


@dataclass(frozen=True)
class DoorSettings:
    """Who may come in, and how: a section with a setting of every type."""

    section: ClassVar[str] = "door"

    open: bool = setting(False, "Whether it stands open.")
    width: int = setting(90, "Wider things stay outside.", minimum=1, maximum=400)
    depth: int = setting(-1, "How far it goes into the wall.", maximum=40)
    weight: float = setting(7.5, "How heavy it is.", minimum=0)
    colour: str = setting("green", "What it is painted with.")
    opens: str = setting("inwards", "To which side.", choices=("inwards", "outwards"))
    key: Path = setting(Path("key.pem"), "Where its key lies.")  # noqa: RUF009
    patience: float = setting(10.0, "How long to knock.", unit=SECONDS, maximum=86_400)
    holiday: int = setting(3600, "How long it stays shut.", unit=SECONDS)
    letter: int = setting(64 * 1024, "The largest letter.", unit=BYTES, maximum=2**30)
    guests: tuple[str, ...] = setting(("ann", "bob"), "Who may come in.")
    days: tuple[str, ...] = setting((), "When it opens.", choices=("sat", "mon"))
    sign: str | None = setting(None, "What is written on it.")
    mat: Path | None = setting(Path("mat"), "What lies before it.")  # noqa: RUF009
    steps: int | None = setting(3, "Steps up to it.", minimum=1)
    password: str | None = setting(None, "What to say.", secret=True, choices=("mellon", "sesame"))
    pin: int = setting(0, "What to type.", secret=True, minimum=0, maximum=9999)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class GardenSettings:
    """The garden: a second section, with a rule about two keys."""

    section: ClassVar[str] = "garden"

    trees: int = setting(2, "Trees.", minimum=0)
    birds: int = setting(1, "Birds, of which none sits on the ground.", minimum=0)

    def __post_init__(self) -> None:
        check(self)
        if self.birds and not self.trees:
            raise SettingsError(["[garden] birds need trees"])


HOUSE: tuple[type[Section], ...] = (DoorSettings, GardenSettings)
DOOR = settings_of(DoorSettings)
SURROGATE = "\udcff"  # what a byte that is not UTF-8 becomes in os.environ


def planted(folder: Path, text: str) -> Path:
    path = folder / "semel.toml"
    path.write_bytes(text.encode())
    return path


def from_file(text: str, folder: Path) -> Settings:
    return load(HOUSE, path=planted(folder, text), environ={}, flags={})


def from_environment(environ: Mapping[str, str]) -> Settings:
    return load(HOUSE, path=None, environ=environ, flags={})


def from_flags(given: Mapping[str, object]) -> Settings:
    return load(HOUSE, path=None, environ={}, flags={"door": given})


def problems_of(**arguments: object) -> tuple[str, ...]:
    """What is wrong with these sources."""
    sources: dict[str, object] = {"path": None, "environ": {}, "flags": {}, **arguments}
    with pytest.raises(SettingsError) as caught:
        load(HOUSE, **sources)  # type: ignore[arg-type] # each test passes what load takes
    return caught.value.problems


# --- every type from every source -----------------------------------------------------------------


# Key: value, as in TOML, and as texts in the environment and in flags.
RIGHT: dict[str, list[tuple[object, str, *tuple[str, ...]]]] = {
    "open": [
        (True, "true", "true", "1", "yes", "on", "TRUE", "Yes"),
        (False, "false", "false", "0", "no", "off", "OFF"),
    ],
    "width": [(1, "1", "1", "01"), (400, "400", "400"), (255, "0xFF", "255")],
    "depth": [(-5, "-5", "-5"), (40, "40", "40")],
    "weight": [(2.5, "2.5", "2.5"), (1000.0, "1e3", "1e3", "1000"), (3.0, "3", "3", "3.0")],
    "colour": [("red, or 1", '"red, or 1"', "red, or 1"), ("true", '"true"', "true")],
    "opens": [("outwards", '"outwards"', "outwards"), ("inwards", "'inwards'", "inwards")],
    "key": [(Path("/etc/key"), '"/etc/key"', "/etc/key"), (Path("a b"), "'a b'", "a b")],
    "patience": [
        (90.0, '"90s"', "90s", "1.5m", "90", "90.0"),
        (300.0, "300", "5m", "300s"),
        (86_400.0, '"24h"', "24h", "1d"),
        (0.25, '"250ms"', "250ms", "0.25s", "0.25"),
        (0.0, "0.0", "0", "0s"),
    ],
    "holiday": [(3960, '"1.1h"', "1.1h"), (172_800, '"2d"', "2d"), (7, "7", "7", "7000ms")],
    "letter": [
        (65_536, '"64KiB"', "64KiB"),
        (10_000_000, '"10MB"', "10MB"),
        (10_000, '"10kB"', "10kB", "10KB"),
        (1536, '"1.5KiB"', "1.5KiB"),
        (2**30, '"1GiB"', "1GiB", "1024MiB"),
        (100, "100", "100", "100B"),
    ],
    "guests": [
        (("eve",), '["eve"]', "eve"),
        (("eve", "dan"), '["eve", "dan"]', "eve,dan", "eve, dan"),
        ((), "[]", ""),
    ],
    "days": [(("mon", "sat"), '["mon", "sat"]', "mon,sat")],
    "sign": [("shut", '"shut"', "shut"), (None, '""', "")],
    "mat": [(Path("red"), '"red"', "red"), (None, '""', "")],
    "steps": [(4, "4", "4"), (None, '""', "")],
    "password": [("mellon", '"mellon"', "mellon")],
    "pin": [(1234, "1234", "1234")],
}


@pytest.mark.parametrize("key", DOOR)
def test_a_value_of_each_type_is_read_alike_from_every_source(tmp_path: Path, key: str) -> None:
    for value, toml, *texts in RIGHT[key]:
        tried = [from_file(f"[door]\n{key} = {toml}\n", tmp_path), from_flags({key: value})]
        for text in texts:
            tried.append(from_environment({f"SEMEL_DOOR_{key.upper()}": text}))
            tried.append(from_flags({key: text}))
        for settings in tried:
            found = getattr(settings.of(DoorSettings), key)
            assert found == value
            assert type(found) is type(value)


WRONG_IN_A_FILE = {
    "open": ['"true"', "1", "0"],
    "width": ['"90"', "true", "90.0", "0", "401", "[1]", "0x" + "f" * 5000],
    "depth": ["41"],
    "weight": ['"1.0"', "-0.1", "nan", "inf", "true", "0x" + "f" * 300],
    "colour": ["1", '""', '"a\\u0000b"', "1979-05-27"],
    "opens": ['"upwards"', '"Inwards"', '""'],
    "key": ['""', '"a\\u0000b"', "1"],
    "patience": ['"5 m"', '"5M"', '"5 minutes"', '"-5s"', "-1", '""', '"m"', '"25h"', "true"],
    "holiday": ['"1500ms"', "1.5"],
    "letter": ['"10M"', '"10mb"', '"0.5B"', '"5m"', "-1", '"2GiB"'],
    "guests": ['"eve"', "[1]", '["eve", ""]'],
    "days": ['["sun"]', '["sat", "sun"]'],
    "sign": ["1", "false"],
    "steps": ["0", '"4"'],
    "pin": ["10000"],
}
WRONG_AS_A_TEXT = {
    "open": ["t", "2", "", "enabled", " true"],
    "width": ["", " 90", "9_0", "٣", "90.0", "0x10", "0", "401", "9" * 5000],
    "weight": ["nan", "inf", "1e999", "1_0.0", "-0.1"],
    "colour": ["", SURROGATE],
    "opens": ["Inwards"],
    "key": [""],
    "patience": ["1e3", "-1", "9" * 5000],
    "holiday": ["0.5"],
    "letter": ["64 KiB"],
    "guests": ["eve,,dan", ",", SURROGATE],
    "steps": ["0"],
    "password": ["friend"],
}


@pytest.mark.parametrize(
    ("key", "toml"), [(key, toml) for key in WRONG_IN_A_FILE for toml in WRONG_IN_A_FILE[key]]
)
def test_a_value_of_the_file_that_is_not_allowed_is_refused_with_its_line(
    tmp_path: Path, key: str, toml: str
) -> None:
    path = planted(tmp_path, f"# a comment\n[garden]\ntrees = 1\n\n[door]\n{key} = {toml}\n")
    (problem,) = problems_of(path=path)
    assert problem.startswith(f"{path}, line 6: [door] {key} ")
    assert ", but must be " in problem


@pytest.mark.parametrize(
    ("key", "text"), [(key, text) for key in WRONG_AS_A_TEXT for text in WRONG_AS_A_TEXT[key]]
)
def test_a_text_that_is_not_allowed_is_refused_with_its_variable_or_flag(
    key: str, text: str
) -> None:
    (problem,) = problems_of(environ={f"SEMEL_DOOR_{key.upper()}": text})
    assert problem.startswith(f"environment variable SEMEL_DOOR_{key.upper()}: [door] {key} ")
    (problem,) = problems_of(flags={"door": {key: text}})
    assert problem.startswith(f"flag --{key}: [door] {key} ")
    problem.encode()  # it can be printed, whatever the environment held


def test_a_path_may_be_any_that_the_system_has() -> None:
    settings = from_environment({"SEMEL_DOOR_KEY": f"/tmp/{SURROGATE}"})
    assert settings.of(DoorSettings).key == Path(f"/tmp/{SURROGATE}")


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("open", "maybe", "true or false"),
        ("width", "500", "an integer, from 1 to 400"),
        ("depth", "41", "an integer, at most 40"),
        ("weight", "-1", "a number, at least 0"),
        ("opens", "up", "one of inwards, outwards"),
        ("key", "", "a path"),
        ("colour", "", "a non-empty string"),
        ("patience", "2d", "a duration such as 90, 90s, 5m or 1h, from 0 to 1d"),
        ("holiday", "1ms", "a duration in whole seconds such as 90, 90s, 5m or 1h, at least 0"),
        ("letter", "x", "a size such as 65536, 64KiB or 10MB, from 0 to 1GiB"),
        ("guests", ",", "a list of non-empty strings"),
        ("days", "sat,sun", "a list of sat, mon"),
        ("steps", "0", "an integer, at least 1, or empty for none"),
    ],
)
def test_a_problem_says_what_was_given_and_what_is_allowed(key: str, text: str, words: str) -> None:
    variable = f"SEMEL_DOOR_{key.upper()}"
    (problem,) = problems_of(environ={variable: text})
    sentence = f'{key} is "{text}", but must be {words}'
    assert problem == f"environment variable {variable}: [door] {sentence}"


def test_one_problem_is_one_line_and_a_long_value_is_not_shown_whole() -> None:
    with pytest.raises(SettingsError) as caught:
        from_environment({"SEMEL_DOOR_WIDTH": "9" * 5000})
    assert len(str(caught.value)) < 250
    assert caught.value.problems == (str(caught.value),)


# --- precedence -----------------------------------------------------------------------------------


def test_flags_go_before_the_environment_which_goes_before_the_file(tmp_path: Path) -> None:
    path = planted(tmp_path, "[door]\nwidth = 1\ncolour = 'file'\nkey = 'file'\nsign = 'file'\n")
    environ = {"SEMEL_DOOR_WIDTH": "2", "SEMEL_DOOR_COLOUR": "environment", "SEMEL_DOOR_SIGN": ""}
    settings = load(HOUSE, path=path, environ=environ, flags={"door": {"width": "3"}})
    assert settings.of(DoorSettings) == DoorSettings(
        width=3, colour="environment", key=Path("file"), sign=None
    )
    assert settings.of(GardenSettings) == GardenSettings()


def test_a_wrong_value_is_a_problem_even_if_a_later_source_overrides_it() -> None:
    problems = problems_of(environ={"SEMEL_DOOR_WIDTH": "x"}, flags={"door": {"width": "3"}})
    assert len(problems) == 1


def test_semel_config_names_the_file_and_config_goes_before_it(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text("[door]\nwidth = 1\n", "utf-8")
    two.write_text("[door]\nwidth = 2\n", "utf-8")
    environ = {"SEMEL_CONFIG": str(one)}
    assert from_environment(environ).of(DoorSettings).width == 1
    settings = load(HOUSE, path=two, environ=environ, flags={})
    assert settings.of(DoorSettings).width == 2


def test_settings_cannot_be_changed_and_a_section_not_loaded_is_not_there() -> None:
    settings = load([DoorSettings], path=None, environ={}, flags={})
    with pytest.raises(FrozenInstanceError):
        settings.of(DoorSettings).width = 3  # type: ignore[misc] # that is the point
    with pytest.raises(LookupError, match="GardenSettings was not loaded"):
        settings.of(GardenSettings)


# --- names that nobody declared -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[door]\nwidht = 1", 2, '[door] has no key "widht"; did you mean width?'),
        ("door.widht = 1", 1, '[door] has no key "widht"; did you mean width?'),
        ("door = { widht = 1 }", 1, '[door] has no key "widht"; did you mean width?'),
        ("[garden]\n[garden.tree]", 2, '[garden] has no key "tree"; did you mean trees?'),
        ("[garden]\nx = 1", 2, '[garden] has no key "x"; known: birds, trees'),
        ("\n[gardn]\ntrees = 1", 2, 'there is no section "gardn"; did you mean garden?'),
        ("[[gardn]]", 1, 'there is no section "gardn"; did you mean garden?'),
        ("[web]", 1, 'there is no section "web"; known: door, garden'),
        ("trees = 1", 1, "trees is outside of any section; did you mean [garden] trees?"),
        ("x = 1", 1, '"x" is outside of any section; each setting belongs to one'),
        ("door = 1", 1, "[door] must be a table"),
        ("[[door]]", 1, "there is only one door: write [door], not [[door]]"),
        ('["do\\u0007or"]', 1, 'there is no section "do\\u0007or"; did you mean door?'),
    ],
)
def test_a_name_in_the_file_that_nobody_declared_is_refused(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    path = planted(tmp_path, text)
    assert problems_of(path=path) == (f"{path}, line {line}: {words}",)


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("SEMEL_DOOR_WIDHT", "did you mean SEMEL_DOOR_WIDTH?"),
        ("SEMEL_DOR_WIDTH", "did you mean SEMEL_DOOR_WIDTH?"),
        ("SEMEL_DOOR_WIDTH_", "did you mean SEMEL_DOOR_WIDTH?"),
        ("SEMEL_CONFG", "did you mean SEMEL_CONFIG?"),
        ("SEMEL_DOOR_QQQ", "a variable is SEMEL_<SECTION>_<KEY>"),
        ("SEMEL_QQQ", "a variable is SEMEL_<SECTION>_<KEY>"),
        ("SEMEL_", "a variable is SEMEL_<SECTION>_<KEY>"),
    ],
)
def test_a_variable_that_nobody_declared_is_refused(variable: str, words: str) -> None:
    (problem,) = problems_of(environ={variable: "hidden"})
    assert problem == f"environment variable {variable}: there is no such setting; {words}"


def test_variables_that_are_no_settings_are_left_alone() -> None:
    others = {"SEMEL_PURE": "1", "SEMEL_TEST_MODE": "compiled", "SEMELE_DOOR": "1", "DOOR": "1"}
    assert from_environment(others).of(DoorSettings) == DoorSettings()


def test_a_flag_that_nobody_declared_is_refused() -> None:
    flags = {"door": {"widht": "1"}, "gardn": {"trees": "1"}}
    assert problems_of(flags=flags) == (
        'flag --widht: [door] has no key "widht"; did you mean width?',
        'flag --trees: there is no section "gardn"; did you mean garden?',
    )


# --- the file -------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "semel.toml"
    assert problems_of(path=path) == (f"{path}: cannot be read: No such file or directory",)
    (problem,) = problems_of(environ={"SEMEL_CONFIG": str(path)})
    assert problem == f"{path} (from SEMEL_CONFIG): cannot be read: No such file or directory"


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    assert problems_of(path=tmp_path) == (f"{tmp_path}: cannot be read: Is a directory",)
    (problem,) = problems_of(environ={"SEMEL_CONFIG": ""})
    assert problem == "an empty path (from SEMEL_CONFIG): cannot be read: Is a directory"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[door]\nwidth = \n", "is not TOML: Invalid value (at line 2, column 9)"),
        (b"[door]\n\xff = 1\n", "is not UTF-8 (at byte 7)"),
        (b"[door]\nwidth = " + b"9" * 5000, "is not TOML: Exceeds the limit"),
        (b"x = " + b"[" * 5000 + b"]" * 5000, "is not TOML: "),
    ],
)
def test_a_file_that_is_not_toml_is_a_problem_with_its_place(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "semel.toml"
    path.write_bytes(content)
    (problem,) = problems_of(path=path)
    assert problem.startswith(f"{path}: {words}")


def test_line_numbers_are_right_after_values_of_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "semel.toml"
    path.write_bytes(
        b'[door] # comment\r\ncolour = """\r\nwidth = 0\r\n"""\r\n'
        b"guests = [\r\n  'ann', # width = 0\r\n]\r\n\r\nwidth = 0\r\nweight = [\r\n1\r\n]\r\n"
    )
    places = [problem.split(": ")[0] for problem in problems_of(path=path)]
    assert places == [f"{path}, line 9", f"{path}, line 10"]


def test_a_value_of_very_many_lines_costs_later_problems_their_line_only(tmp_path: Path) -> None:
    path = planted(tmp_path, "[door]\nguests = [\n" + "'ann',\n" * 5000 + "]\nwidth = 0\n")
    (problem,) = problems_of(path=path)
    assert problem.startswith(f"{path}: [door] width is 0, ")


# --- all problems, and no secrets -----------------------------------------------------------------


def test_all_problems_of_all_sources_are_reported_together(tmp_path: Path) -> None:
    path = planted(tmp_path, "[door]\nwidth = 0\nopen = 1\n[gardn]\n[garden]\ntrees = 0\n")
    environ = {"SEMEL_DOOR_LETTER": "x", "SEMEL_DOR": "x"}
    with pytest.raises(SettingsError) as caught:
        load(HOUSE, path=path, environ=environ, flags={"door": {"patience": "x"}})
    problems = caught.value.problems
    assert len(problems) == 7
    assert problems[-1] == "[garden] birds need trees"
    assert str(caught.value) == "\n  ".join(["7 settings are invalid:", *problems])


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    path = planted(tmp_path, '[door]\npassword = "hunter2"\npin = "hunter2"\n')
    problems = problems_of(
        path=path,
        environ={"SEMEL_DOOR_PASSWORD": "hunter2", "SEMEL_DOOR_PASWORD": "hunter2"},
        flags={"door": {"pin": "hunter2", "passwort": "hunter2"}},
    )
    assert len(problems) == 6
    assert "hunter2" not in "".join(problems)
    assert "[door] password has a value (a secret, not shown), but must be one of" in problems[0]
    with pytest.raises(SettingsError) as caught:
        DoorSettings(password="hunter2")
    assert "hunter2" not in str(caught.value)


def test_a_section_does_not_show_its_secrets() -> None:
    settings = from_flags({"password": "mellon", "colour": "blue"})
    assert settings.of(DoorSettings).password == "mellon"
    assert "mellon" not in repr(settings)
    assert "blue" in repr(settings)


# --- sections made by a program -------------------------------------------------------------------


def test_a_section_that_a_program_makes_is_checked_too() -> None:
    assert DoorSettings(width=400, patience=5, guests=()).width == 400
    with pytest.raises(SettingsError) as caught:
        DoorSettings(width=401, guests=("eve", ""), key="text")  # type: ignore[arg-type]
    assert caught.value.problems == (
        "DoorSettings: [door] width is 401, but must be an integer, from 1 to 400",
        'DoorSettings: [door] key is "text", but must be a path',
        'DoorSettings: [door] guests is ["eve", ""], but must be a list of non-empty strings',
    )


def made(annotation: object, default: object, name: str = "key", section: str = "bad") -> type:
    """A section with one field."""
    body = {"__annotations__": {name: annotation}, name: default, "section": section}
    return dataclass(frozen=True)(type("Bad", (), body))


def test_a_section_rightly_declared_is_taken() -> None:
    assert list(settings_of(made(int, setting(1, "A number.", minimum=1)))) == ["key"]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (made(int, 1), "not made by setting"),
        (made(bytes, setting(b"", "Bytes.")), "a setting cannot be of type"),
        (made(int | str, setting(1, "Two.")), "a setting cannot be of type"),
        (made(list[str], setting((), "A list.")), "a setting cannot be of type"),
        (made(tuple[str, ...] | None, setting(None, "None.")), "a setting cannot be of type"),
        (made(int, setting("1", "A text.")), "the default must be an integer"),
        (made(int, setting(None, "None.")), "the default must be an integer"),
        (made(int, setting(0, "Low.", minimum=1)), "the default must be an integer, at least 1"),
        (made(str, setting("", "Empty.")), "the default must be a non-empty string"),
        (made(str, setting("a", "A unit.", unit=BYTES)), "a duration or size is"),
        (made(int, setting(1, "Choices.", choices=("1",))), "can have choices"),
        (made(int, setting(1, "A rule.", rule=lambda text: None)), "only a string can have a rule"),
        (made(str, setting("a", "A rule.", rule=lambda text: "no")), "the default must be"),
        (made(int, setting(1, "Upper."), name="Key"), "cannot have this name"),
        (made(int, setting(1, "Clash."), name="mode", section="test"), "a setting cannot have"),
        (made(int, setting(1, "Two words."), section="two_words"), "not a valid section name"),
    ],
)
def test_a_section_wrongly_declared_is_a_type_error(section: type[Section], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        settings_of(section)


# --- the example file -----------------------------------------------------------------------------


def uncommented(text: str) -> str:
    """The example with all its settings switched on."""
    return re.sub(r"^#(?=\w)", "", text, flags=re.MULTILINE)


def test_the_example_gives_the_defaults_as_it_is_and_switched_on(tmp_path: Path) -> None:
    switched_on = uncommented(describe(HOUSE))
    assert [key for key in DOOR if f"\n{key} = " not in switched_on] == []
    for text in (switched_on, describe(HOUSE)):
        settings = from_file(text, tmp_path)
        assert settings.of(DoorSettings) == DoorSettings()
        assert settings.of(GardenSettings) == GardenSettings()


def test_the_example_says_what_each_setting_does_and_may_be() -> None:
    text = describe(HOUSE)
    assert max(map(len, text.splitlines())) <= 100
    assert "\n\n# Wider things stay outside.\n# An integer, from 1 to 400. SEMEL_DOOR_W" in text
    assert " SEMEL_DOOR_WIDTH\n#width = 90\n\n" in text
    assert "\n\n# The garden: a second section, with a rule about two keys.\n[garden]\n\n" in text


# Key: value, as the environment has it, as TOML has it.
WRITTEN: dict[str, list[tuple[Value, str, str]]] = {
    "open": [(True, "true", "true"), (False, "false", "false")],
    "colour": [('a"\\\x7f\n\t', 'a"\\\x7f\n\t', '"a\\"\\\\\\u007f\\n\\t"')],
    "key": [(Path("/a"), "/a", '"/a"')],
    "patience": [(90.0, "90s", '"90s"'), (0.1, "100ms", '"100ms"'), (1e-4, "0.0001", "0.0001")],
    "weight": [(1e22, "1e+22", "1e+22"), (0.0, "0.0", "0.0")],
    "holiday": [(86_400, "1d", '"1d"'), (61, "61s", '"61s"')],
    "letter": [(0, "0", "0"), (2**20, "1MiB", '"1MiB"'), (10**6, "1MB", '"1MB"')],
    "guests": [(("eve", "dan"), "eve,dan", '["eve", "dan"]'), ((), "", "[]")],
    "sign": [(None, "", '""')],
}


@pytest.mark.parametrize("key", WRITTEN)
def test_what_is_written_can_be_read_again(tmp_path: Path, key: str) -> None:
    for value, text, toml in WRITTEN[key]:
        assert written(DOOR[key], value) == text
        assert toml_text(DOOR[key], value) == toml
        for settings in (
            from_file(f"[door]\n{key} = {toml}\n", tmp_path),
            from_environment({f"SEMEL_DOOR_{key.upper()}": text}),
        ):
            assert getattr(settings.of(DoorSettings), key) == value


# --- flags ----------------------------------------------------------------------------------------


@click.command
@click.option("--loud", is_flag=True)
@options(DoorSettings, GardenSettings)
@click.argument("names", nargs=-1)
def knock(config: Path | None, flags: Flags, loud: bool, names: tuple[str, ...]) -> None:
    """Knock at the door."""
    click.echo(repr((config, flags, loud, names)))


def run(*arguments: str) -> str:
    result = CliRunner().invoke(knock, arguments)
    assert result.exit_code == 0, result.output
    return result.output.rstrip("\n")


def test_flags_hold_only_what_was_given_and_other_parameters_reach_the_command() -> None:
    assert run() == repr((None, {"door": {}, "garden": {}}, False, ()))
    output = run("--width=5", "--open", "--trees=4", "--loud", "--config", "semel.toml", "ann")
    given = {"door": {"open": True, "width": "5"}, "garden": {"trees": "4"}}
    assert output == repr((Path("semel.toml"), given, True, ("ann",)))


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ("--open", True),
        ("--no-open", False),
        ("--width 90", 90),
        ("--weight=1.5", 1.5),
        ("--colour red", "red"),
        ("--opens outwards", "outwards"),
        ("--key /etc/key", Path("/etc/key")),
        ("--patience 2m", 120.0),
        ("--letter 1KiB", 1024),
        ("--guests eve", ("eve",)),
        ("--guests eve --guests a,b", ("eve", "a,b")),
        ("--guests=", ()),
        ("--sign shut", "shut"),
        ("--mat=", None),
    ],
)
def test_a_flag_of_each_type_goes_through_load(arguments: str, value: object) -> None:
    seen: list[object] = []

    @click.command
    @options(DoorSettings)
    def command(config: Path | None, flags: Flags) -> None:
        (key,) = flags["door"]
        assert f"{key} " in f"{arguments} ".replace("=", " ")
        settings = load(HOUSE, path=config, environ={}, flags=flags)
        seen.append(getattr(settings.of(DoorSettings), key))

    CliRunner().invoke(command, arguments.split(), catch_exceptions=False)
    assert seen == [value]
    assert type(seen[0]) is type(value)


def test_a_secret_has_no_flag() -> None:
    result = CliRunner().invoke(knock, ["--password", "mellon"])
    assert result.exit_code == 2
    assert "No such option" in result.output


def test_help_says_what_the_declaration_says() -> None:
    output = " ".join(run("--help").split())
    for words in (
        "--config FILE Read settings from this file. [or SEMEL_CONFIG]",
        "--width N Wider things stay outside. [default: 90; from 1 to 400]",
        "--open / --no-open Whether it stands open. [default: false]",
        "--opens inwards|outwards",
        "--key FILE",
        "--weight NUMBER",
        "--patience DURATION",
        "--letter SIZE The largest letter. [default: ",
        "default: ann,bob; may be repeated]",
        "--sign TEXT What is written on it. [optional]",
    ):
        assert words in output


def test_two_sections_or_two_flags_of_one_name_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="two sections are named door"):
        load([DoorSettings, DoorSettings], path=None, environ={}, flags={})
    with pytest.raises(TypeError, match="two flags are named --width"):
        options(DoorSettings, made(int, setting(1, "Again."), name="width"))
    with pytest.raises(TypeError, match="two flags are named --config"):
        options(made(int, setting(1, "Taken."), name="config"))
    with pytest.raises(TypeError, match="two flags are named --no-open"):
        options(DoorSettings, made(str, setting("x", "Contrary."), name="no_open"))
