"""Configurations of Mosquitto as people have them, with the files that they name."""

import subprocess
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509

from tests.broker.tls_files import SERVER_AUTH, Authority
from tests.kills.brokers import free_port

TEMPLATES = Path(__file__).parent / "mosquitto_configs"
NAMES = sorted(each.stem for each in TEMPLATES.glob("*.conf"))
USER, PASSWORD = "ann", "a password"

ACL = "topic read plant/#\nuser ann\ntopic readwrite plant/#\n"


class Example:
    """One configuration in a folder, with free ports and the files that it names."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self.ports: list[int] = []
        while len(self.ports) < 2:
            port = free_port()
            if port not in self.ports:
                self.ports.append(port)
        for name_of_folder in ("conf.d", "lib"):
            (folder / name_of_folder).mkdir()
        for template in (TEMPLATES / "conf.d").iterdir():
            self._write(template, folder / "conf.d" / template.name)
        self.path = folder / "mosquitto.conf"
        self._write(TEMPLATES / f"{name}.conf", self.path)
        (folder / "acl").write_text(ACL)
        (folder / "acl").chmod(0o600)

    def _write(self, template: Path, path: Path) -> None:
        text = template.read_text("utf-8").replace("{folder}", str(self.folder))
        for number, port in enumerate(self.ports, 1):
            text = text.replace(f"{{port{number}}}", str(port))
        path.write_text(text, "utf-8")

    def add_passwords(self) -> None:
        """Make the password files, by Mosquitto's own tool."""
        for name in ("passwords", "other_passwords"):
            path = self.folder / name
            path.touch(0o600)
            command = ["mosquitto_passwd", "-b", str(path), USER, PASSWORD]
            subprocess.run(command, check=True, capture_output=True)

    def add_certificates(self) -> None:
        """Make the certificates of the server, of the client press-7, and of a stranger."""
        trusted = Authority(self.folder, "ca")
        address = x509.IPAddress(ip_address("127.0.0.1"))
        trusted.issue("server", alternatives=[address], usage=SERVER_AUTH)
        trusted.issue("press-7")
        Authority(self.folder, "other-ca").issue("stranger")
