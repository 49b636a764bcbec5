"""Every normative statement is claimed by a rule or accounted for, and every claim is kept.

A guard is a function that takes what it looks at and returns one sentence for each thing wrong.
Beside each is a test that hands it something doctored: a guard that cannot bark is no guard.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from semel.mqtt import RULES, Rule, exchange_rules, rules
from semel.standard import DUTY, NEITHER, OWED, Statement, StatementAccount, accounts, statements
from tests.mqtt.vectors import Trace, Vector, load_traces, load_vectors

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "semel"
# The rooms of DESIGN.md section 1 that can owe something.
ROOMS = {"store", "broker", "client", "pipeline", "probe", "web", "lab", "up", "cli"}
VERSIONS = {"3.1.1": 4, "5.0": 5}
STATEMENTS = [*statements("3.1.1"), *statements("5.0")]


def parsed(folder: Path) -> dict[str, ast.Module]:
    """The syntax tree of each Python file under a folder, by its path from the repository."""
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.py"))
    }


def nodes_of(trees: Mapping[str, ast.Module]) -> set[str]:
    """The tests in these files as pytest names them, without parameters."""
    return {
        f"{path}::{node.name}"
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def made_up(name: str = "MADE_UP", *, mqtt311: str = "", mqtt5: str = "", at: str) -> Rule:
    return Rule(name, "A rule for a test.", mqtt311=mqtt311, mqtt5=mqtt5, at=at, reason=0x82)


# --- statements and who claims them ---------------------------------------------------------------


def unaccounted(
    known: Iterable[Statement], claims: Iterable[Rule], books: Iterable[StatementAccount]
) -> list[str]:
    """Statements that no rule claims and no account mentions."""
    claimed = {
        (version, statement)
        for rule in claims
        for version, level in VERSIONS.items()
        for statement in rule.statements(level)
    }
    claimed |= {(account.version, account.id) for account in books}
    return [f"{s.version} {s.id}" for s in known if (s.version, s.id) not in claimed]


def claims_of_nothing(known: Iterable[Statement], claims: Iterable[Rule]) -> list[str]:
    """Statements that rules name and that their version does not have."""
    exist = {(statement.version, statement.id) for statement in known}
    return [
        f"{rule.name} claims {version} {statement}"
        for rule in claims
        for version, level in VERSIONS.items()
        for statement in rule.statements(level)
        if (version, statement) not in exist
    ]


def misnamed(constants: Mapping[str, object]) -> list[str]:
    """Rules whose constant has another name than they have."""
    return [
        f"{name} holds {value.name}"
        for name, value in constants.items()
        if isinstance(value, Rule) and value.name != name
    ]


def test_every_statement_is_claimed_by_a_rule_or_accounted_for() -> None:
    assert len(STATEMENTS) == 141 + 251 + 80
    assert unaccounted(STATEMENTS, RULES, accounts()) == []


def test_a_statement_that_nobody_accounts_for_is_noticed() -> None:
    books = [account for account in accounts() if account.id != "MQTT-3.12.4-1"]
    found = unaccounted(STATEMENTS, RULES, books)
    assert found == ["3.1.1 MQTT-3.12.4-1", "5.0 MQTT-3.12.4-1"]
    others = [rule for rule in RULES if rule is not rules.PACKET_TYPE_KNOWN]
    assert unaccounted(STATEMENTS, others, accounts()) == ["3.1.1 U3-01", "5.0 U5-01"]


def test_rules_claim_statements_that_exist() -> None:
    assert claims_of_nothing(STATEMENTS, RULES) == []


def test_a_claim_of_a_statement_that_does_not_exist_is_noticed() -> None:
    # 5.0 has no 2.2.1-1, and 1.5.5-1 is not in 3.1.1.
    rule = made_up(mqtt311="1.5.5-1 PUBLISH:3.3.1-1", mqtt5="CONNECT:2.2.1-1 U3-01", at="decode")
    assert claims_of_nothing(STATEMENTS, [rule]) == [
        "MADE_UP claims 3.1.1 MQTT-1.5.5-1",
        "MADE_UP claims 5.0 MQTT-2.2.1-1",
        "MADE_UP claims 5.0 U3-01",
    ]


def test_a_rule_has_the_name_of_its_constant() -> None:
    assert misnamed({**vars(rules), **vars(exchange_rules)}) == []


def test_a_rule_under_another_name_is_noticed() -> None:
    constants = {"QOS_NOT_3": rules.QOS_NOT_3, "OTHER": rules.QOS_NOT_3, "annotations": None}
    assert misnamed(constants) == ["OTHER holds QOS_NOT_3"]


# --- the accounting -------------------------------------------------------------------------------


def bad_accounts(
    books: Iterable[StatementAccount], known: Iterable[Statement], tests: set[str], rooms: set[str]
) -> list[str]:
    """Accounts that mention what does not exist, or that a room should have settled by now.

    `tests` are the tests there are, `rooms` the rooms that have been built.
    """
    exist = {(statement.version, statement.id) for statement in known}
    times = Counter((account.version, account.id, account.by) for account in books)
    found = []
    for account in books:
        where = f"{account.version} {account.id}: "
        if (account.version, account.id) not in exist:
            found.append(f"{where}no such statement")
        if times[account.version, account.id, account.by] > 1:
            found.append(f"{where}{account.by or 'neither'} twice")
        if account.kind == DUTY:
            if account.by.partition("[")[0] not in tests:
                found.append(f"{where}no test {account.by}")
        elif account.kind == OWED:
            if account.by not in ROOMS:
                found.append(f"{where}no room {account.by}")
            elif account.by in rooms:
                found.append(f"{where}{account.by} is there and still owes it")
            if not account.why:
                found.append(f"{where}nobody says what is owed")
        elif account.kind == NEITHER:
            if not account.why:
                found.append(f"{where}no reason")
        else:
            found.append(f"{where}no such kind: {account.kind}")
    return found


def test_accounts_name_tests_that_exist_and_rooms_that_do_not_yet() -> None:
    built = {room for room in ROOMS if (SOURCES / room).is_dir()}
    tests = nodes_of(parsed(ROOT / "tests"))
    assert bad_accounts(accounts(), STATEMENTS, tests, built) == []


def test_an_account_that_is_wrong_is_noticed() -> None:
    right = StatementAccount("5.0", "MQTT-3.12.4-1", OWED, "broker", "answer PINGREQ with PINGRESP")
    tests = nodes_of({"tests/test_x.py": ast.parse("def test_y(): ...\ndef other(): ...")})

    def complaints(account: StatementAccount, *built: str) -> list[str]:
        found = bad_accounts([account], STATEMENTS, tests, set(built))
        return [line.removeprefix("5.0 MQTT-3.12.4-1: ") for line in found]

    assert complaints(right, "store") == []
    assert complaints(right, "broker") == ["broker is there and still owes it"]
    assert complaints(replace(right, by="kitchen")) == ["no room kitchen"]
    assert complaints(replace(right, why="")) == ["nobody says what is owed"]
    assert complaints(replace(right, kind="later")) == ["no such kind: later"]
    assert complaints(replace(right, kind=NEITHER, why="")) == ["no reason"]
    assert complaints(replace(right, kind=NEITHER, by="")) == []
    duty = replace(right, kind=DUTY, by="tests/test_x.py::test_y")
    assert complaints(duty) == []
    assert complaints(replace(duty, by="tests/test_x.py::test_y[3.1.1]")) == []
    assert complaints(replace(duty, by="tests/test_x.py::other")) == [
        "no test tests/test_x.py::other"
    ]
    unknown = replace(right, version="3.1.1", id="MQTT-1.5.5-1")
    assert complaints(unknown) == ["3.1.1 MQTT-1.5.5-1: no such statement"]
    assert bad_accounts([right, right], STATEMENTS, tests, set()) == [
        "5.0 MQTT-3.12.4-1: broker twice",
        "5.0 MQTT-3.12.4-1: broker twice",
    ]


# --- where rules are raised -----------------------------------------------------------------------


def raised(trees: Mapping[str, ast.Module]) -> Counter[str]:
    """How often the source says `Violation(NAME, …)`, by name."""
    return Counter(
        node.args[0].id
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Violation"
        and node.args
        and isinstance(node.args[0], ast.Name)
    )


def not_raised_once(names: Iterable[str], trees: Mapping[str, ast.Module]) -> list[str]:
    """Rules that not exactly one line raises, and what is raised that is no rule."""
    count = raised(trees)
    wanted = list(names)
    found = [f"{name} is raised in {count[name]} places" for name in wanted if count[name] != 1]
    return found + [f"{name} is no rule" for name in count if name not in wanted]


def test_each_rule_is_raised_by_exactly_one_line() -> None:
    names = [rule.name for rule in RULES]
    assert len(names) == len(set(names))
    assert not_raised_once(names, parsed(SOURCES / "mqtt")) == []


def test_a_rule_raised_twice_or_never_is_noticed() -> None:
    trees = {
        "a.py": ast.parse("raise Violation(ONE, 'x')\nreport(found, Violation(TWO, 'y'))"),
        "b.py": ast.parse("def f():\n    raise Violation(TWO, f'{z}', 3)\nraise Violation(FOUR)"),
    }
    assert not_raised_once(["ONE", "TWO", "THREE"], trees) == [
        "TWO is raised in 2 places",
        "THREE is raised in 0 places",
        "FOUR is no rule",
    ]


# --- vectors --------------------------------------------------------------------------------------


def boundaries_without_vectors(
    claims: Iterable[Rule], wire: Iterable[Vector], traces: Iterable[Trace], tests: str
) -> list[str]:
    """Boundaries that rules claim and at which no vector breaks them; `tests` are the sources."""
    kept = {(v.rule.name, "encode" if v.data is None else "decode") for v in wire if v.rule}
    kept |= {(trace.rule.name, "exchange") for trace in traces if trace.rule}
    # The standard has no limits of ours, so no vector can show them: a test of ours does.
    kept |= {(rule.name, "limit") for rule in claims if rule.name in tests}
    known = {"encode", "decode", "exchange", "limit"}
    return [
        f"{rule.name} at {boundary}"
        for rule in claims
        for boundary in rule.boundaries
        if (rule.name, boundary) not in kept or boundary not in known
    ]


def statements_without_vectors(
    known: Iterable[Statement], wire: Iterable[Vector], traces: Iterable[Trace]
) -> list[str]:
    """Statements that a packet's bytes can show and that no vector of their version names."""
    named = {(v.version, statement) for v in wire for statement in v.statements}
    named |= {(trace.version, statement) for trace in traces for statement in trace.statements}
    return [
        f"{s.version} {s.id}"
        for s in known
        if {"encode", "decode"} & set(s.observable) and (VERSIONS[s.version], s.id) not in named
    ]


def test_every_boundary_that_a_rule_claims_has_a_vector_that_fails_there() -> None:
    tests = "".join(path.read_text("utf-8") for path in (ROOT / "tests" / "mqtt").rglob("*.py"))
    assert boundaries_without_vectors(RULES, load_vectors(), load_traces(), tests) == []


def test_a_boundary_without_a_vector_is_noticed() -> None:
    wire, traces = load_vectors(), load_traces()
    never = made_up("NEVER", at="encode decode exchange limit door")
    assert boundaries_without_vectors([never], wire, traces, "QOS_NOT_3") == [
        "NEVER at encode",
        "NEVER at decode",
        "NEVER at exchange",
        "NEVER at limit",
        "NEVER at door",
    ]
    builds = [v for v in wire if v.data is None]
    decodes = [v for v in wire if v.data is not None]
    both = [rules.QOS_NOT_3]
    assert boundaries_without_vectors(both, wire, traces, "") == []
    assert boundaries_without_vectors(both, builds, traces, "") == ["QOS_NOT_3 at decode"]
    assert boundaries_without_vectors(both, decodes, traces, "") == ["QOS_NOT_3 at encode"]
    second = [exchange_rules.CONNECT_ONCE]
    assert boundaries_without_vectors(second, wire, traces, "") == []
    assert boundaries_without_vectors(second, wire, [], "") == ["CONNECT_ONCE at exchange"]
    levels = [rules.TOPIC_LEVELS_WITHIN_LIMIT]
    assert boundaries_without_vectors(levels, wire, traces, "rules.TOPIC_LEVELS_WITHIN_LIMIT") == []


def test_every_statement_that_bytes_can_show_has_a_vector() -> None:
    assert statements_without_vectors(STATEMENTS, load_vectors(), load_traces()) == []


def test_a_statement_without_a_vector_is_noticed() -> None:
    wire, traces = load_vectors(), load_traces()
    others = [v for v in wire if "MQTT-3.3.2-2" not in v.statements or v.version == 5]
    assert statements_without_vectors(STATEMENTS, others, traces) == ["3.1.1 MQTT-3.3.2-2"]
    others = [v for v in wire if "MQTT-3.3.2-2" not in v.statements]
    assert "5.0 MQTT-3.3.2-2" in statements_without_vectors(STATEMENTS, others, traces)
    few = [trace for trace in traces if "U5-02" not in trace.statements]
    assert statements_without_vectors(STATEMENTS, wire, few) == ["5.0 U5-02"]


# --- the loader -----------------------------------------------------------------------------------


def test_a_statement_is_read_as_it_stands_in_the_table() -> None:
    first = statements("3.1.1")[0]
    assert (first.version, first.id, first.actor) == ("3.1.1", "MQTT-1.5.3-1", "both")
    assert first.packets == ("any",)
    assert first.observable == ("encode", "decode", "exchange")
    assert first.bad_input.startswith("C>S hex:100f00044d515454")
    last = statements("5.0")[-1]
    assert (last.version, last.id, last.packets) == ("5.0", "U5-73", ("AUTH",))
    assert len({(s.version, s.id) for s in STATEMENTS}) == len(STATEMENTS)
