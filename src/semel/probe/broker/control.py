"""Starts, stops and kills the broker that is examined, by commands of the user.

Only with them are statements about restarts and crashes observable.
"""

import asyncio
import time
from dataclasses import dataclass

from semel.client.address import Address

# How long a command may take, and then the broker to accept or refuse connections.
COMMAND_SECONDS = 60.0
WAIT_SECONDS = 60.0


class ControlCommandFailed(Exception):
    """A command of --start, --stop or --kill failed: a sentence."""


@dataclass(frozen=True)
class BrokerControl:
    """The commands, each run by a shell; empty: not given."""

    address: Address
    start_command: str = ""
    stop_command: str = ""
    kill_command: str = ""

    def missing(self, needs: str) -> str:
        """The options that a case with such needs still requires; empty if none."""
        wanted = {"--start": self.start_command}
        if needs == "kill":
            wanted["--kill"] = self.kill_command
        else:
            wanted["--stop"] = self.stop_command
        return ", ".join(option for option, command in wanted.items() if not command)

    async def start(self) -> None:
        """Start the broker, unless it accepts connections already or no command is given."""
        if not self.start_command or await self._accepts():
            return
        await self._run("--start", self.start_command)
        await self._wait_until(accepts=True, option="--start")

    async def stop(self) -> None:
        """Stop the broker in order."""
        await self._run("--stop", self.stop_command)
        await self._wait_until(accepts=False, option="--stop")

    async def kill(self) -> None:
        """Kill the broker, as a power failure of the process would."""
        await self._run("--kill", self.kill_command)
        await self._wait_until(accepts=False, option="--kill")

    async def _run(self, option: str, command: str) -> None:
        process = await asyncio.create_subprocess_shell(
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                code = await process.wait()
        except TimeoutError:
            raise ControlCommandFailed(
                f"the command of {option} did not end within {COMMAND_SECONDS:g} s; a command that"
                " starts a broker must leave it in the background"
            ) from None
        if code:
            raise ControlCommandFailed(f"the command of {option} failed with exit code {code}")

    async def _accepts(self) -> bool:
        address = self.address
        try:
            if address.scheme == "unix":
                _, writer = await asyncio.open_unix_connection(address.path)
            else:
                _, writer = await asyncio.open_connection(address.host, address.port)
        except OSError:
            return False
        writer.close()
        return True

    async def _wait_until(self, *, accepts: bool, option: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while await self._accepts() != accepts:
            if time.monotonic() > deadline:
                verb = "does not accept" if accepts else "still accepts"
                raise ControlCommandFailed(
                    f"{self.address.where} {verb} connections {WAIT_SECONDS:g} s after the"
                    f" command of {option}"
                )
            await asyncio.sleep(0.1)
