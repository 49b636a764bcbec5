"""The files under deploy/ are true: commands parse, paths exist, settings load, ports agree.

What needs a daemon (Docker, Kubernetes, systemd) is not started. systemd-analyze, which needs none,
checks the unit, and a broker runs under the restriction of memory that the unit sets.
"""

import configparser
import http.server
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from semel import cli
from semel.broker.network.listener_settings import ListenerSettings
from semel.cli.groups import RunnableGroup
from semel.cli.sections import SECTIONS
from semel.settings import Settings, load

HOME = Path(__file__).resolve().parent.parent
DEPLOY = HOME / "deploy"
UNIT = DEPLOY / "semel-broker.service"
DOCKERFILE = DEPLOY / "Dockerfile"
COMPOSE = DEPLOY / "compose.yaml"
KUBERNETES = DEPLOY / "kubernetes" / "semel.yaml"
SETTINGS = [DEPLOY / "semel.toml", DEPLOY / "compose" / "semel.toml"]
# Where the unit and the image have the command.
COMMAND = "/opt/semel/bin/semel"
NEEDS_ANALYZE = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="not installed: systemd-analyze"
)
# Generous: it only ends what would hang.
PATIENCE = 60.0
# prctl: memory is either writable or executable, as MemoryDenyWriteExecute says it (Linux 6.3).
DENY_WRITE_EXECUTE = "import ctypes, sys; done = ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0"


def parse_command(words: list[str]) -> None:
    """Parse a semel command by its own parser, which runs nothing."""
    command: click.Command = cli.group
    context = click.Context(cli.group)
    while isinstance(command, click.Group):
        if isinstance(command, RunnableGroup) and (not words or words[0] not in command.commands):
            break
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, name
        command = found
    command.make_context(command.name, list(words))


@pytest.mark.parametrize("words", [["brokr"], ["broker", "--no-such-flag"], ["config", "chek"]])
def test_a_wrong_command_is_noticed(words: list[str]) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        parse_command(words)


def settings_from(path: Path) -> Settings:
    return load(SECTIONS, path=path, environ={}, flags={})


def metrics_port(settings: Settings, section: str) -> int:
    (found,) = [each for each in settings.sections if each.section == section]
    port: int = vars(found)["metrics_port"]
    return port


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_example_settings_load_and_admit_no_strangers(path: Path) -> None:
    settings = settings_from(path)
    listeners = settings.all_of(ListenerSettings)
    assert listeners
    assert all(each.anonymous is False for each in listeners)
    assert tomllib.loads(path.read_text())["users"]["password_file"].startswith("/etc/semel/")


# --- systemd --------------------------------------------------------------------------------------


def unit_lines() -> list[tuple[str, str]]:
    """The assignments of the unit; a key may occur several times."""
    lines = UNIT.read_text().splitlines()
    pairs = [line.partition("=") for line in lines if "=" in line and not line.startswith("#")]
    return [(key, value) for key, _, value in pairs]


def test_the_unit_has_the_sections_of_a_service() -> None:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read(UNIT)
    assert parser.sections() == ["Unit", "Service", "Install"]


def test_every_command_of_the_unit_is_valid() -> None:
    commands = [value for key, value in unit_lines() if key.startswith("Exec")]
    assert len(commands) == 4
    for each in commands:
        program, *words = shlex.split(each)
        if program == COMMAND:
            parse_command(words)
        else:
            assert [program, *words] == ["/bin/kill", "-HUP", "$MAINPID"]
    assert "/etc/semel/semel.toml" in commands[0]


def test_the_unit_can_write_where_its_settings_say() -> None:
    unit = dict(unit_lines())
    example = tomllib.loads((DEPLOY / "semel.toml").read_text())
    assert example["store"]["data"].startswith(f"/var/lib/{unit['StateDirectory']}/")
    local = [each for each in example["listener"] if "path" in each]
    # Who can reach the socket in the folder, its group, can also use it.
    assert [each["mode"][-2:] for each in local] == ["60"]
    assert unit["RuntimeDirectoryMode"].endswith("50")
    sockets = [each["path"] for each in local]
    assert all(each.startswith(f"/run/{unit['RuntimeDirectory']}/") for each in sockets)
    assert sockets
    fields = (DEPLOY / "sysusers.conf").read_text().splitlines()[-1].split()
    assert fields[:2] == ["u", unit["User"]]


@NEEDS_ANALYZE
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """It wants programs that exist, so it gets one."""
    unit = tmp_path / UNIT.name
    text = UNIT.read_text().replace(COMMAND, shutil.which("true") or "/bin/true")
    unit.write_text(text)
    result = analyze("verify", str(unit))
    assert result.returncode == 0, result.stderr
    assert UNIT.name not in result.stderr, result.stderr
    # And it does not accept everything.
    unit.write_text(text.replace("ProtectSystem=strict", "ProtectSistem=strict"))
    assert "ProtectSistem" in analyze("verify", str(unit)).stderr


@NEEDS_ANALYZE
def test_systemd_finds_the_unit_hardened(tmp_path: Path) -> None:
    """The exposure is from 0 to 10, and a service that is only started has 9.6."""
    unit = tmp_path / UNIT.name
    text = UNIT.read_text().replace(COMMAND, shutil.which("true") or "/bin/true")
    unit.write_text(text)
    hardened = ("security", "--offline=true", "--no-pager", "--threshold=20", str(unit))
    result = analyze(*hardened)
    if "unrecognized option" in result.stderr:
        pytest.skip("this systemd-analyze cannot examine a file")
    assert result.returncode == 0, result.stdout
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    assert analyze(*hardened).returncode != 0


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def test_a_broker_needs_no_memory_that_is_writable_and_executable(tmp_path: Path) -> None:
    """MemoryDenyWriteExecute: libraries behind cffi must not need it, nor uvloop or OpenSSL."""
    probe = f"{DENY_WRITE_EXECUTE}; sys.exit(0 if done else 3)"
    if subprocess.run([sys.executable, "-c", probe], check=False).returncode == 3:
        pytest.skip("this kernel has no PR_SET_MDWE")
    forbidden = "import mmap; mmap.mmap(-1, 4096, prot=7)"
    refused = subprocess.run(
        [sys.executable, "-c", f"{DENY_WRITE_EXECUTE}; {forbidden}"],
        capture_output=True,
        check=False,
    )
    assert b"PermissionError" in refused.stderr
    libraries = (
        "import argon2, ssl; argon2.PasswordHasher().hash('x'); ssl.create_default_context()"
    )
    subprocess.run([sys.executable, "-c", f"{DENY_WRITE_EXECUTE}; {libraries}"], check=True)
    program = f"{DENY_WRITE_EXECUTE}; from semel.cli import main; main()"
    data = tmp_path / "data"
    words = ["broker", "--port", "0", "--data", str(data), "--stream", "all=#", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            event = json.loads(line)
            if event.get("event") == "ready":
                break
        else:
            raise AssertionError("the broker did not start")
        connect = bytes.fromhex("100c00044d5154540402003c0000")
        with socket.create_connection(("127.0.0.1", event["port"]), PATIENCE) as connection:
            connection.sendall(connect)
            assert connection.recv(4) == bytes.fromhex("20020000")
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(PATIENCE) == 0


def allowed_calls() -> set[str]:
    """The system calls that the unit allows, by the groups of systemd."""
    listed = analyze("syscall-filter", "--no-pager").stdout.splitlines()
    groups: dict[str, list[str]] = {}
    name = ""
    for line in listed:
        if line.startswith("@"):
            name = line.strip()
            groups[name] = []
        elif line.startswith("    ") and not line.strip().startswith("#"):
            groups[name].append(line.strip())

    def expand(group: str) -> set[str]:
        parts = [expand(each) if each.startswith("@") else {each} for each in groups[group]]
        return set[str]().union(*parts)

    allowed: set[str] = set()
    for key, value in unit_lines():
        if key == "SystemCallFilter":
            if value.startswith("~"):
                allowed -= expand(value[1:])
            else:
                allowed |= expand(value)
    return allowed


@NEEDS_ANALYZE
@pytest.mark.skipif(shutil.which("strace") is None, reason="not installed: strace")
def test_a_broker_needs_no_system_call_that_the_unit_forbids(tmp_path: Path) -> None:
    allowed = allowed_calls()
    assert {"read", "execve", "fsync", "accept4"} <= allowed
    assert allowed.isdisjoint({"mount", "chown", "setuid", "ptrace", "reboot"})
    data, counts = tmp_path / "data", tmp_path / "counts"
    words = ["broker", "--port", "0", "--data", str(data), "--stream", "all=#", "--json"]
    program = [sys.executable, "-m", "semel", *words]
    traced = ["strace", "-f", "-qq", "-c", "-U", "name", "-o", str(counts), *program]
    process = subprocess.Popen(traced, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    broker = 0
    try:
        for line in process.stdout:
            event = json.loads(line)
            if event.get("event") == "ready":
                break
        else:
            pytest.skip(f"strace cannot trace here: {process.communicate()[1]}")
        broker = int((data / "lock").read_text())
        with socket.create_connection(("127.0.0.1", event["port"]), PATIENCE) as connection:
            connection.sendall(bytes.fromhex("100c00044d5154540402003c0000"))
            assert connection.recv(4) == bytes.fromhex("20020000")
            connection.sendall(bytes.fromhex("320700016100016f6b"))
            assert connection.recv(4) == bytes.fromhex("40020001")
    finally:
        if broker:
            os.kill(broker, signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
    used = {line.strip() for line in counts.read_text().splitlines()} - {"syscall", "total", ""}
    used = {each for each in used if each.isidentifier()}
    assert {"epoll_create1", "fsync", "listen"} <= used
    # SQLite gives its files to their owner, but only as root.
    forbidden = used - allowed - ({"fchown"} if os.geteuid() == 0 else set())
    assert forbidden == set()


# --- Docker ---------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    pairs = [line.partition(" ") for line in lines if line.strip()]
    return [(keyword, rest.strip()) for keyword, _, rest in pairs]


def values_of(keyword: str) -> list[str]:
    return [value for each, value in instructions() if each == keyword]


def test_the_image_is_built_of_pinned_stages_and_runs_without_root() -> None:
    first, last = values_of("FROM")
    assert first == f"{last} AS build"
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", last)
    (user,) = values_of("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    keywords = [keyword for keyword, _ in instructions()]
    assert set(keywords[keywords.index("USER") :]).isdisjoint({"RUN", "COPY", "ADD"})


def test_everything_that_the_image_copies_exists_and_is_sent_to_the_build() -> None:
    sent = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [value.split() for value in values_of("COPY") if "--from=" not in value]
    sources = [source for *given, _ in copied for source in given]
    assert {"pyproject.toml", "setup.py", "constraints.txt", "src"} <= set(sources)
    for source in sources:
        assert (HOME / source).exists(), source
        assert f"!{source}" in sent, source
    project = tomllib.loads((HOME / "pyproject.toml").read_text())
    assert {project["project"]["readme"], *project["project"]["license-files"]} <= set(sources)


def test_every_step_of_the_image_is_a_valid_shell_command() -> None:
    for step in values_of("RUN"):
        subprocess.run(["sh", "-n", "-c", step], check=True)


def test_the_options_of_pip_in_the_image_exist() -> None:
    found = 0
    for step in values_of("RUN"):
        for words in re.findall(r"/pip (\w+ [^&]*)", step):
            name, *rest = words.split()
            command = [sys.executable, "-m", "pip", name, "--help"]
            usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            for option in rest:
                if option.startswith("--"):
                    assert re.search(rf"{option}\b", usage), option
                    found += 1
    assert found >= 8


def test_the_extras_of_the_images_exist() -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    (default,) = [value.partition("=")[2] for value in values_of("ARG")]
    compose = yaml.safe_load(COMPOSE.read_text())
    other = compose["services"]["landing"]["build"]["args"]["EXTRAS"]
    assert {default, other} <= set(project["optional-dependencies"])


def test_the_first_steps_of_the_image_run(tmp_path: Path) -> None:
    """The folders and the user are for root; a virtual environment is for everybody."""
    (step,) = [each for each in values_of("RUN") if each.startswith("python -m venv")]
    venv = step.split("&&")[0].split()
    assert venv[:3] == ["python", "-m", "venv"]
    folder = tmp_path / "semel"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    assert (folder / "bin" / "python").exists()
    assert Path(COMMAND).is_relative_to(venv[3])
    (environment,) = values_of("ENV")
    assert f"PATH={Path(COMMAND).parent}:" in environment


def test_the_command_of_the_image_is_valid() -> None:
    (entry_point,) = values_of("ENTRYPOINT")
    (command,) = values_of("CMD")
    assert json.loads(entry_point) == ["semel"]
    words: list[str] = json.loads(command)
    parse_command(words)


class _Answer(http.server.BaseHTTPRequestHandler):
    """Answers /healthz with 200, and all else with 503."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 503)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


@contextmanager
def answering() -> Iterator[int]:
    """An HTTP server on a port that the system chose."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def health_checks() -> list[tuple[str, list[str]]]:
    """By section of the settings whose metrics it asks: the command of a health check."""
    (health,) = values_of("HEALTHCHECK")
    compose = yaml.safe_load(COMPOSE.read_text())
    landing = compose["services"]["landing"]["healthcheck"]["test"]
    assert landing[0] == "CMD"
    return [("broker", json.loads(health.partition("CMD ")[2])), ("land", landing[1:])]


@pytest.mark.parametrize(("section", "command"), health_checks(), ids=["broker", "landing"])
def test_a_health_check_succeeds_only_if_the_process_is_healthy(
    section: str, command: list[str]
) -> None:
    program, option, code = command
    assert (program, option) == ("python", "-c")
    found = re.search(r"127\.0\.0\.1:(\d+)/", code)
    assert found is not None
    compose = tomllib.loads((DEPLOY / "compose" / "semel.toml").read_text())
    assert compose[section]["metrics_port"] == int(found[1])

    def run(code: str) -> int:
        return subprocess.run(
            [sys.executable, option, code], capture_output=True, check=False
        ).returncode

    with answering() as port:
        here = code.replace(f":{found[1]}/", f":{port}/")
        assert run(here) == 0
        assert run(here.replace("/healthz", "/readyz")) != 0
    assert run(here) != 0


# --- Compose --------------------------------------------------------------------------------------

# Files that the user makes, as docs/operate/deploy.md says.
MADE_BY_USER = {"compose/access"}


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def test_every_service_is_hardened_and_pinned() -> None:
    assert set(services()) == {"broker", "landing", "prometheus", "grafana"}
    for name, service in services().items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service
        if "build" not in service:
            assert re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+", service["image"]), name
        else:
            assert (COMPOSE.parent / service["build"]["context"]).resolve() == HOME
            assert (HOME / service["build"]["dockerfile"]) == DOCKERFILE
            parse_command(service["command"])


def test_compose_publishes_to_this_machine_only_and_no_metrics() -> None:
    published = [port for each in services().values() for port in each.get("ports", [])]
    assert published
    for port in published:
        host, _, inner = port.split(":")
        assert host == "127.0.0.1"
        assert inner not in ("9883", "9884")


def test_every_file_that_compose_mounts_exists() -> None:
    page = (HOME / "docs" / "operate" / "deploy.md").read_text()
    mounted = 0
    for service in services().values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./"):
                mounted += 1
                path = source.removeprefix("./")
                assert volume.endswith(":ro"), volume
                if path in MADE_BY_USER:
                    assert f"deploy/{path}" in page
                else:
                    assert (DEPLOY / path).exists(), path
    assert mounted >= 8


def test_the_password_file_of_compose_is_in_a_folder_that_is_mounted() -> None:
    """A file that is mounted by itself would stay the old one when it is replaced."""
    settings = tomllib.loads((DEPLOY / "compose" / "semel.toml").read_text())
    folder = Path(settings["users"]["password_file"]).parent
    mounted = [each.split(":")[:2] for each in services()["broker"]["volumes"]]
    (source,) = [source for source, target in mounted if target == str(folder)]
    ignored = (HOME / ".gitignore").read_text().splitlines()
    assert f"/{(DEPLOY / source).relative_to(HOME)}/" in ignored


def test_prometheus_and_grafana_find_what_they_need() -> None:
    settings = tomllib.loads((DEPLOY / "compose" / "semel.toml").read_text())
    prometheus = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
    targets = {
        target
        for job in prometheus["scrape_configs"]
        for each in job["static_configs"]
        for target in each["targets"]
    }
    assert targets == {
        f"broker:{settings['broker']['metrics_port']}",
        f"landing:{settings['land']['metrics_port']}",
    }
    sources = yaml.safe_load((DEPLOY / "compose" / "grafana-datasources.yml").read_text())
    (source,) = sources["datasources"]
    assert source["url"] == "http://prometheus:9090"
    boards = yaml.safe_load((DEPLOY / "compose" / "grafana-dashboards.yml").read_text())
    folder = boards["providers"][0]["options"]["path"]
    volumes = services()["grafana"]["volumes"]
    assert f"./grafana:{folder}:ro" in volumes


def test_the_landing_reads_what_the_broker_records() -> None:
    settings = tomllib.loads((DEPLOY / "compose" / "semel.toml").read_text())
    assert settings["land"]["root"] == settings["store"]["root"]
    assert settings["land"]["stream"] in [each["name"] for each in settings["stream"]]
    shared = "broker-data:/var/lib/semel"
    assert all(shared in services()[name]["volumes"] for name in ("broker", "landing"))


# --- Kubernetes -----------------------------------------------------------------------------------


def objects() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for each in yaml.safe_load_all(KUBERNETES.read_text()):
        assert {"apiVersion", "kind", "metadata"} <= set(each)
        found.setdefault(each["kind"], []).append(each)
    return found


def pod() -> dict[str, Any]:
    (stateful_set,) = objects()["StatefulSet"]
    template: dict[str, Any] = stateful_set["spec"]["template"]["spec"]
    return template


def test_the_objects_of_kubernetes_refer_to_each_other() -> None:
    found = objects()
    (stateful_set,) = found["StatefulSet"]
    labels = stateful_set["spec"]["template"]["metadata"]["labels"]
    assert stateful_set["spec"]["selector"]["matchLabels"] == labels
    assert stateful_set["spec"]["serviceName"] in [
        each["metadata"]["name"] for each in found["Service"]
    ]
    (container,) = pod()["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    for service in found["Service"]:
        assert service["spec"]["selector"] == labels
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    (policy,) = found["NetworkPolicy"]
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    allowed = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert allowed == set(ports.values())
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[name]["httpGet"]["port"] == "metrics"
        assert container[name]["httpGet"]["path"] in ("/healthz", "/readyz")
    claims = [each["metadata"]["name"] for each in stateful_set["spec"]["volumeClaimTemplates"]]
    volumes = [*claims, *(each["name"] for each in pod()["volumes"])]
    assert {each["name"] for each in container["volumeMounts"]} == set(volumes)


def test_the_pod_has_no_rights_that_it_does_not_need() -> None:
    (container,) = pod()["containers"]
    (user,) = values_of("USER")
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert pod()["securityContext"]["runAsUser"] == int(user.split(":")[0])
    assert pod()["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert re.search(r":(?!latest)[\w.]+$", container["image"])
    parse_command(container["args"])


def test_the_paths_in_the_pods_settings_are_mounted() -> None:
    (config_map,) = objects()["ConfigMap"]
    ((name, text),) = config_map["data"].items()
    settings = tomllib.loads(text)
    (container,) = pod()["containers"]
    mounts = [Path(each["mountPath"]) for each in container["volumeMounts"]]
    (variable,) = container["env"]
    assert variable["name"] == "SEMEL_CONFIG"
    (listener,) = settings["listener"]
    paths = [
        variable["value"],
        listener["certfile"],
        listener["keyfile"],
        settings["users"]["password_file"],
        settings["rights"]["file"],
        settings["store"]["data"],
    ]
    for path in paths:
        assert any(Path(path).is_relative_to(mount) for mount in mounts), path
    assert Path(variable["value"]).name == name
    assert listener["anonymous"] is False


def test_the_pods_settings_load(tmp_path: Path) -> None:
    (config_map,) = objects()["ConfigMap"]
    path = tmp_path / "semel.toml"
    path.write_text(config_map["data"]["semel.toml"])
    settings = settings_from(path)
    (listener,) = settings.all_of(ListenerSettings)
    (container,) = pod()["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert listener.effective_port == ports["mqtts"]
    assert metrics_port(settings, "broker") == ports["metrics"]


# --- wheels ---------------------------------------------------------------------------------------

RELEASE = DEPLOY / "wheels" / "release.yaml"
CIBUILDWHEEL = DEPLOY / "wheels" / "cibuildwheel.toml"


def release_jobs() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(RELEASE.read_text())["jobs"]
    return found


def release_steps(job: str) -> list[str]:
    """The shell steps of a job."""
    return [step["run"] for step in release_jobs()[job]["steps"] if "run" in step]


def test_the_release_publishes_tags_only_and_what_was_built_and_tested() -> None:
    jobs = release_jobs()
    publish = jobs["publish"]
    assert publish["if"] == "github.ref_type == 'tag'"
    assert set(publish["needs"]) == set(jobs) - {"publish"}
    # YAML reads the key `on` as true.
    events = yaml.safe_load(RELEASE.read_text())[True]
    assert set(events) == {"push", "workflow_dispatch"}
    assert events["push"] == {"tags": ["v*"]}


def test_no_job_of_the_release_may_more_than_it_must() -> None:
    assert yaml.safe_load(RELEASE.read_text())["permissions"] == {"contents": "read"}
    granted = {
        name: job["permissions"] for name, job in release_jobs().items() if "permissions" in job
    }
    assert granted == {"publish": {"id-token": "write"}}
    # Who publishes runs nothing of the repository.
    assert release_steps("publish") == []
    assert "secrets." not in RELEASE.read_text()


def test_every_action_of_the_release_has_a_version() -> None:
    used = [
        step["uses"] for job in release_jobs().values() for step in job["steps"] if "uses" in step
    ]
    assert used
    for each in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", each), each


def test_every_step_of_the_release_is_a_valid_shell_command() -> None:
    steps = [step for job in release_jobs() for step in release_steps(job)]
    assert len(steps) >= 6
    for step in steps:
        subprocess.run(["sh", "-n", "-c", step], check=True)


def test_every_file_that_the_release_names_exists() -> None:
    steps = " ".join(step for job in release_jobs() for step in release_steps(job))
    assert str(CIBUILDWHEEL.relative_to(HOME)) in steps
    assert "--build-constraint constraints.txt" in steps
    settings = tomllib.loads(CIBUILDWHEEL.read_text())["tool"]["cibuildwheel"]
    assert settings["environment"] == {"PIP_BUILD_CONSTRAINT": "/project/constraints.txt"}
    for folder in re.findall(r"tests/\w+", " ".join(settings["test-command"])):
        assert (HOME / folder).is_dir()
    # One version of cibuildwheel, in both files.
    versions = re.findall(r"cibuildwheel==([\d.]+)", steps + CIBUILDWHEEL.read_text())
    assert len(versions) == 2
    assert len(set(versions)) == 1


def test_wheels_are_compiled_for_every_python_and_pure_for_the_others() -> None:
    settings = tomllib.loads(CIBUILDWHEEL.read_text())["tool"]["cibuildwheel"]
    assert settings["build"] == [f"cp3{minor}-manylinux_*" for minor in range(11, 15)]
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    # A wheel that is not compiled is an error.
    assert settings["test-command"][0] == "semel version | grep '(compiled)'"
    assert "SEMEL_TEST_MODE=compiled" in settings["test-command"][1]
    assert any("SEMEL_PURE=1" in step for step in release_steps("source"))
