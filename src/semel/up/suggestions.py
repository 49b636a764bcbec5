"""Commands that `semel up` suggests once its broker is ready: publish a message, query it."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeGuard

from semel.pipeline.settings import LandSettings
from semel.store.roots import without_secrets
from semel.up.plan import DATA, LAKE_FOLDER, UpPlan

# Where to connect to a broker that listens on all addresses.
LOCAL_ADDRESSES: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # nosec B104 # compared, not bound

UNIX: Final = "unix"

# A name that SQL accepts without quotation marks.
_SQL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# What a shell interprets between double quotation marks.
_SHELL_SPECIAL: Final = re.compile(r'["$`\\!]')


def program_name(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """The command with which the user can call this `semel` in the same working directory."""
    ours = Path(sys.executable).with_name("semel")
    if Path(argv[0]).name == "semel" and (called := shutil.which(argv[0])):
        ours = Path(called).absolute()
    if not ours.exists():
        command = [sys.executable, "-m", "semel"]
        if environ.get("PYTHONPATH"):
            command = ["env", f"PYTHONPATH={environ['PYTHONPATH']}", *command]
        return shlex.join(command)
    on_path = shutil.which("semel", path=environ.get("PATH"))
    if on_path is not None and os.path.realpath(on_path) == os.path.realpath(ours):
        return "semel"
    relative = os.path.relpath(ours)
    return shlex.quote(str(ours) if relative.startswith("..") else relative)


def server_options(listeners: object) -> str:
    """The options of `semel pub` for the listener that needs the fewest, in the "ready" event."""
    found = [each for each in listeners if isinstance(each, dict)] if _is_list(listeners) else []
    by_transport = {str(each.get("transport")): each for each in reversed(found)}
    for transport in ("tcp", UNIX, "ws", "tls", "wss"):
        if transport in by_transport:
            return _options_for(transport, by_transport[transport])
    return ""


def _is_list(found: object) -> TypeGuard[list[object]]:
    return isinstance(found, list)


def _options_for(transport: str, listener: Mapping[str, object]) -> str:
    if transport == UNIX:
        return f" --unix {shlex.quote(str(listener.get('path')))}"
    options = ""
    host = str(listener.get("host"))
    host = LOCAL_ADDRESSES.get(host, host)
    if host not in ("127.0.0.1", "localhost"):
        options += f" -h {shlex.quote(host)}"
    if transport != "tcp" or listener.get("port") != 1883:
        options += f" -p {listener.get('port')}"
    if transport in ("ws", "wss"):
        options += " --ws"
    if transport in ("tls", "wss"):
        # Which CA has signed the certificate is not known here.
        options += " --tls-use-os-certs"
    return options


def suggested_commands(plan: UpPlan, program: str, *, listeners: object) -> list[str]:
    """Two shell commands for the same working directory: publish a message, and read it.

    They include every non-default option. `listeners` are those of the broker's event "ready".
    """
    server = server_options(listeners)
    publish = f"{program} pub{server} -t plant/1/temp -m 21.5 -q 2"
    if plan.lands:
        return [publish, _query_command(plan, program)]
    read = f"{program} stream read {plan.stream} --data {shlex.quote(str(plan.data))}"
    if plan.root is not None:
        read += f" --root {shlex.quote(without_secrets(plan.root))}"
    return [publish, read]


def _query_command(plan: UpPlan, program: str) -> str:
    """A query of the landed and the recorded rows, which has a result before Spark is ready.

    Addresses are shown without their secrets. Values that --config provides are left out.
    """
    options: list[str] = []
    variables: list[str] = []
    if plan.config is None:
        needs_lake = plan.lake != str(Path(DATA) / LAKE_FOLDER)
        needs_data = plan.lake != str(plan.data / LAKE_FOLDER)
        needs_root = plan.root is not None
    else:
        options += ["--config", str(plan.config)]
        needs_lake, needs_data, needs_root = (
            name not in plan.by_file for name in ("lake", "data", "root")
        )
    if needs_lake:
        options += ["--lake", without_secrets(plan.lake)]
    if needs_data:
        options += ["--data", str(plan.data)]
    if needs_root:
        options += ["--root", without_secrets(plan.record)]
    # `semel sql` has no flags for these two.
    for name, value, default in (
        ("stream", plan.stream, LandSettings.stream),
        ("table", plan.table, LandSettings.table),
    ):
        if name not in plan.by_file and (value != default or plan.config is not None):
            variables.append(f"SEMEL_LAND_{name.upper()}={value}")
    before = f"{shlex.join(['env', *variables])} " if variables else ""
    after = f" {shlex.join(options)}" if options else ""
    view = f"{plan.table}_now"
    if not _SQL_NAME.fullmatch(view):
        escaped = view.replace('"', '""')
        view = f'"{escaped}"'
    query = f"select topic, count(*) from {view} group by 1"
    quoted = shlex.quote(query) if _SHELL_SPECIAL.search(query) else f'"{query}"'
    return f"{before}{program} sql{after} {quoted}"
