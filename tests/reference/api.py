"""The pages that list what programs import, made of signatures and docstrings.

The sources are parsed, not imported: a compiled class has no signature that Python can show.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parents[2] / "src"
LINE: Final = 96
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | Function


@dataclass(frozen=True)
class ApiModule:
    """Names of a module that programs import; a class may list the members to show."""

    module: str
    names: dict[str, tuple[str, ...] | None]


@dataclass(frozen=True)
class ApiPage:
    """A page in docs/program, in which each module is a section."""

    name: str
    title: str
    introduction: str
    modules: tuple[ApiModule, ...]


def every(*names: str) -> dict[str, tuple[str, ...] | None]:
    """These names, with all of their public members."""
    return dict.fromkeys(names)


PAGES: Final = (
    ApiPage(
        "api-client.md",
        "API: the client",
        "[The client](client.md) explains how these are used.",
        (
            ApiModule(
                "semel",
                {
                    "Client": (
                        "connect",
                        "close",
                        "publish",
                        "subscribe",
                        "messages",
                        "end_subscription",
                        "request",
                        "ping",
                        "reauthenticate",
                        "client_id",
                        "connected",
                        "session_present",
                        "server",
                        "counters",
                    ),
                    "Messages": None,
                    "Received": ("key", "ack"),
                    "Refused": None,
                    "Disconnected": None,
                },
            ),
            ApiModule(
                "semel.client",
                {
                    **every("Address", "BadAddress", "parse_address", "Backoff"),
                    **every("ClientCounters", "ClientAuthentication"),
                    "ScramAuthentication": (),
                },
            ),
            ApiModule("semel.client.tls", every("make_context")),
            ApiModule("semel.store.schema", every("Unusable")),
        ),
    ),
    ApiPage(
        "api-mqtt.md",
        "API: packets, codec and state",
        "[The codec](codec.md) and [Exchange and Session](sessions.md) explain how these are used. "
        "Everything here is in `semel.mqtt`, which does no I/O.",
        (
            ApiModule(
                "semel.mqtt",
                {
                    **every("decode", "encode"),
                    "Decoder": ("receive", "unfinished"),
                    **every("observe", "Observation", "Violation", "Rule"),
                    **every("Connect", "Will", "ConnAck", "Publish"),
                    **every("PubAck", "PubRec", "PubRel", "PubComp"),
                    **every("Subscribe", "Subscription", "SubAck", "Unsubscribe", "UnsubAck"),
                    **every("PingReq", "PingResp", "Disconnect", "Auth"),
                    "Properties": ("items", "has"),
                    "Exchange": ("observe", "check", "resume", "carry", "topic_name"),
                    "Session": (
                        "connect",
                        "disconnect",
                        "is_over",
                        "send",
                        "poll",
                        "drain",
                        "receive_publish",
                        "accept",
                        "receive_puback",
                        "receive_pubrec",
                        "receive_pubrel",
                        "receive_pubcomp",
                        "reserve_id",
                        "release_id",
                    ),
                    **every("Message", "received_message", "Delivery", "Receipt", "Change"),
                    **every("topic_matches", "split_share", "check_levels", "packet_type_of"),
                },
            ),
        ),
    ),
    ApiPage(
        "api-testing.md",
        "API: the broker for tests",
        "[A broker for tests](testing.md) explains how these are used. The fixture `mqtt_broker` "
        "is a `TestBroker`, and `mqtt_broker_factory(**settings)` starts further ones.",
        (
            ApiModule("semel.lab.testing", every("TestBroker", "Published")),
            ApiModule("semel.lab.faults", {"Fault": ("wait", "wait_async", "end")}),
            ApiModule("semel.lab.recording", every("RecordedPacket")),
            ApiModule("semel.lab.embedded_broker", every("SessionSnapshot")),
        ),
    ),
    ApiPage(
        "api-authority.md",
        "API: authentication hooks",
        "[Authentication hooks](authentication.md) explains how these are used.",
        (
            ApiModule(
                "semel.broker.authority",
                every(
                    "Authority", "Proof", "ServerAuthentication", "Challenge", "Granted", "Denied"
                ),
            ),
            ApiModule("semel.broker.identity", every("Identity", "PeerInfo", "identity_of")),
            ApiModule("semel.broker.access.connect_request", every("ConnectRequest")),
        ),
    ),
    ApiPage(
        "api-spark.md",
        "API: Spark",
        "[The Spark source](../data/spark.md), [Delta tables in Spark](../data/delta.md) and "
        "[landing on a cluster](../operate/cluster.md) explain how these are used. The formats "
        "`mqtt` and `semel_delta` need no import.",
        (
            ApiModule(
                "semel.pipeline",
                every("session", "register", "read_table", "register_tables", "upsert"),
            ),
        ),
    ),
)


# What only semel makes: programs get it, and need not know how to construct it.
RESULTS: Final = frozenset(
    (
        "Change",
        "Delivery",
        "Disconnected",
        "Fault",
        "Messages",
        "Observation",
        "Receipt",
        "Received",
        "Refused",
        "Rule",
        "Violation",
    )
)


def file_of(module: str) -> Path:
    """The source of a module or package."""
    path = SOURCES.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, with those under `if TYPE_CHECKING`."""
    for each in body:
        yield each
        if isinstance(each, ast.If):
            yield from each.body


def find_definition(module: str, name: str) -> tuple[Definition, str]:
    """The definition of a name that a module has or imports, and the source of it."""
    text = file_of(module).read_text("utf-8")
    found: Definition | None = None
    for each in statements(ast.parse(text).body):
        if isinstance(each, ast.ImportFrom) and each.module is not None:
            if any((alias.asname or alias.name) == name for alias in each.names):
                return find_definition(each.module, name)
        elif isinstance(each, ast.ClassDef | Function) and each.name == name:
            # The last one: overloads come before what they describe.
            found = each
    assert found is not None, f"{module} has no {name}"
    return found, text


# --- signatures -----------------------------------------------------------------------------------


def plain_type(annotation: ast.expr | None) -> str:
    """A type without quotation marks and without Final."""
    if annotation is None:
        return ""
    text = ast.unparse(annotation)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        text = annotation.value
    if "Literal" not in text:
        text = re.sub(r"'([\w.\[\], |]+)'", r"\1", text)
    final = re.fullmatch(r"Final\[(.*)\]", text)
    return quoted(final[1] if final else text)


def quoted(text: str) -> str:
    """Unparsed Python with the quotation marks of the sources."""
    return text.replace("'", '"')


def parameter(argument: ast.arg, default: ast.expr | None) -> str:
    kind = plain_type(argument.annotation)
    text = f"{argument.arg}: {kind}" if kind else argument.arg
    if default is None:
        return text
    value = quoted(ast.unparse(default))
    return f"{text} = {value}" if kind else f"{text}={value}"


def parameters(function: Function, *, is_method: bool) -> list[str]:
    """What a function takes, each as text."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = len(positional) - len(arguments.defaults)
    defaults = [*[None] * missing, *arguments.defaults]
    found = [parameter(*pair) for pair in zip(positional, defaults, strict=True)]
    if is_method and "staticmethod" not in decorators(function):
        found = found[1:]
    if arguments.vararg is not None:
        found.append(f"*{parameter(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        found.append("*")
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    found += [parameter(*pair) for pair in pairs]
    if arguments.kwarg is not None:
        found.append(f"**{parameter(arguments.kwarg, None)}")
    return found


def signature(name: str, taken: list[str], returned: str) -> str:
    """A signature on one line, or on several if it is long."""
    arrow = f" -> {returned}" if returned else ""
    line = f"{name}({', '.join(taken)}){arrow}"
    if len(line) <= LINE:
        return line
    inside = "".join(f"    {each},\n" for each in taken)
    return f"{name}(\n{inside}){arrow}"


def decorators(node: Definition) -> list[str]:
    return [ast.unparse(each).partition("(")[0] for each in node.decorator_list]


def function_signature(function: Function, name: str, *, is_method: bool = False) -> str:
    returned = plain_type(function.returns)
    prefix = "await " if isinstance(function, ast.AsyncFunctionDef) else ""
    return prefix + signature(name, parameters(function, is_method=is_method), returned)


# --- sections -------------------------------------------------------------------------------------


def described(node: Definition) -> str:
    """The docstring as Markdown: its examples are code, and the rest is."""
    text = ast.get_docstring(node) or ""
    return re.sub(r"<(?=\w)", "&lt;", text) if "`" not in text else text


def code(text: str) -> str:
    # Not "python": tests run the examples of that kind.
    return f"```py\n{text}\n```\n"


def attributes(node: ast.ClassDef, source: str) -> str:
    """The public annotated attributes as they are in the source, with the comments above them."""
    lines = source.splitlines()
    shown = []
    for each in node.body:
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        if each.target.id.startswith("_"):
            continue
        first = each.lineno - 1
        comments: list[str] = []
        while lines[first - 1].strip().startswith("# "):
            first -= 1
            comments.insert(0, lines[first].strip())
        value = each.value
        default = f" = {quoted(ast.unparse(value))}" if isinstance(value, ast.Constant) else ""
        shown += [*comments, f"{each.target.id}: {plain_type(each.annotation)}{default}"]
    return "\n".join(shown)


def assigned(function: Function) -> str:
    """The public attributes that a constructor assigns, with the types of their parameters."""
    types = {each.arg: each.annotation for each in (*function.args.args, *function.args.kwonlyargs)}
    shown = []
    for each in function.body:
        target = each.targets[0] if isinstance(each, ast.Assign) else None
        if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
            kind = plain_type(types.get(target.attr))
            shown.append(f"{target.attr}: {kind}" if kind else target.attr)
    return "\n".join(shown)


def members(node: ast.ClassDef, wanted: tuple[str, ...] | None) -> list[Function]:
    """The functions of a class to show: those that are named, or all with a docstring."""
    functions = {each.name: each for each in node.body if isinstance(each, Function)}
    if wanted is not None:
        missing = [name for name in wanted if name not in functions]
        assert not missing, f"{node.name} has no {missing}"
        return [functions[name] for name in wanted]
    return [
        each
        for each in functions.values()
        if not each.name.startswith("_") and ast.get_docstring(each)
    ]


def class_section(
    node: ast.ClassDef, module: str, source: str, wanted: tuple[str, ...] | None
) -> list[str]:
    functions = {each.name: each for each in node.body if isinstance(each, Function)}
    start = functions.get("__init__")
    shown = f"from {module} import {node.name}"
    own = attributes(node, source)
    if start is not None and node.name in RESULTS:
        own = own or assigned(start)
    elif start is not None:
        taken = parameters(start, is_method=True)
        shown += f"\n\n{signature(node.name, taken, '')}"
        names = {each.partition(":")[0].lstrip("*") for each in taken}
        declared = {line.partition(":")[0] for line in own.splitlines() if line[0] != "#"}
        # What the constructor takes says it all; of a class with chosen members, so do these.
        if declared <= names or wanted is not None:
            own = ""
    parts = [f"### {node.name}\n", code(shown)]
    text = described(node)
    if text:
        parts.append(f"{text}\n")
    if start is not None and ast.get_docstring(start) and node.name not in RESULTS:
        parts.append(f"{described(start)}\n")
    if own:
        parts.append(code(own))
    chosen = members(node, wanted)
    properties = [each for each in chosen if "property" in decorators(each)]
    if properties:
        rows = []
        for each in properties:
            kind = plain_type(each.returns).replace("|", "\\|")
            sentence = " ".join(described(each).split()).replace("|", "\\|")
            rows.append(f"| `{each.name}` | `{kind}` | {sentence} |\n")
        parts.append(f"| attribute | type | |\n|---|---|---|\n{''.join(rows)}")
    for each in chosen:
        if "property" in decorators(each):
            continue
        parts.append(f"#### {node.name}.{each.name}\n")
        parts.append(code(function_signature(each, each.name, is_method=True)))
        parts.append(f"{described(each)}\n")
    return parts


def section_of(module: str, name: str, wanted: tuple[str, ...] | None) -> list[str]:
    node, source = find_definition(module, name)
    if isinstance(node, ast.ClassDef):
        return class_section(node, module, source, wanted)
    shown = f"from {module} import {name}\n\n{function_signature(node, name)}"
    return [f"### {name}\n", code(shown), f"{described(node)}\n"]


def api_page(page: ApiPage) -> str:
    """The text of a page."""
    introduction = (
        f"{page.introduction} This page is generated from the sources; `make reference` writes it "
        "again after a change."
    )
    parts = [f"# {page.title}\n", f"{textwrap.fill(introduction, 100)}\n"]
    for each in page.modules:
        parts.append(f"## {each.module}\n")
        for name, wanted in each.names.items():
            parts += section_of(each.module, name, wanted)
    return "\n".join(parts)
