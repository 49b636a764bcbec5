"""Repeats the requests of one case of a codec. `codec_reproducer` writes its text into files.

A reproducer has the docstring and the data of its case instead of those here, so this module uses
the standard library of Python 3.8 only.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import signal
import subprocess  # nosec B404: it runs the adapter that was examined, or that the user names
import sys
import tempfile
import threading
import time
from typing import IO

# --- the case: begin ---
CASE = ""
VERSION = "5.0"
STATEMENTS: list[tuple[str, str]] = []
REQUIRED = ""
FOUND = ""
# The command of the adapter that was examined.
COMMAND: list[str] = []
# Requests and answers as JSON. The control is something right; it is empty if there is none.
CONTROL_REQUEST = ""
CONTROL_ANSWER = ""
TEST_REQUEST = ""
TEST_ANSWER = ""
RIGHT_ANSWER = ""
# --- the case: end ---

# How long the adapter may take for an answer, and until it has started: interpreters are slow.
TIMEOUT = 5.0
START_TIMEOUT = 20.0
LONGEST_LINE = 1 << 22
# Longer texts of the adapter are cut where they are shown.
LONGEST_SHOWN = 2000
# The kinds of answers that mean that the codec did not survive the request.
FAILURES = ("crashed", "silent")
SENDERS = {"C>S": "from client to server", "S>C": "from server to client"}


class ReproductionStopped(Exception):
    """Nothing can be proved: the reason, as a sentence."""


class AdapterProgram:
    """The adapter, as a child process that reads and writes lines of JSON."""

    def __init__(self, command: list[str], errors: IO[bytes]) -> None:
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.number = 0
        self.errors = errors
        try:
            self.process = subprocess.Popen(  # nosec B603: the examined or the user's own command
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                # Of its own, so that all of a command such as `npx ...` can be ended.
                start_new_session=True,
            )
        except (OSError, ValueError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            raise ReproductionStopped(
                visible(f"cannot start the adapter {join(command)}: {reason}")
            ) from None
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        """Put the lines of the adapter into the queue; an empty one at their end."""
        assert self.process.stdout is not None
        line = b"?"
        while line:
            line = self.process.stdout.readline(LONGEST_LINE)
            self.lines.put(line)

    def ask(self, request: dict[str, object], seconds: float) -> dict[str, object]:
        """The answer; {"silent": ...} or {"crashed": ...} if there is none."""
        assert self.process.stdin is not None
        self.number += 1
        # An adapter that has ended is noticed when it is read.
        with contextlib.suppress(OSError):
            line = json.dumps({"id": self.number, **request}) + "\n"
            self.process.stdin.write(line.encode("ascii"))
            self.process.stdin.flush()
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return {"silent": f"the adapter did not answer within {seconds:g} s"}
            if not found:
                return {"crashed": self.last_words()}
            try:
                answer = json.loads(found)
            except (ValueError, RecursionError):
                continue
            if isinstance(answer, dict) and answer.get("id") == self.number:
                # Only this program says that an adapter is silent.
                return {key: answer[key] for key in answer if key not in ("id", "silent")}

    def last_words(self) -> str:
        """How the process ended, with the last line of its standard error."""
        try:
            text = f"the adapter ended with exit code {self.process.wait(1)}"
        except subprocess.TimeoutExpired:
            text = "the adapter closed its output"
        self.errors.seek(0)
        lines = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        return text + (f": {lines[-1].strip()[:300]}" if lines else "")

    def close(self) -> None:
        """End the adapter and all that it started."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if self.process.poll() is None and hasattr(os, "killpg"):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.reader.join(1)
        if not self.reader.is_alive():
            self.process.stdout.close()


def kind_of(answer: dict[str, object]) -> str:
    """What an answer is: one of the words of the protocol, or "unclear"."""
    if isinstance(answer.get("packet"), dict):
        return "packet"
    if written(answer) is not None:
        return "hex"
    for kind in ("refused", "cannot", "crashed", "incomplete", "silent"):
        if kind in answer:
            return kind
    return "unclear"


def written(answer: dict[str, object]) -> bytes | None:
    """The bytes of an answer; None if it has none."""
    text = answer.get("hex")
    try:
        return bytes.fromhex(text) if isinstance(text, str) else None
    except ValueError:
        return None


def is_accepted(answer: dict[str, object]) -> bool:
    return kind_of(answer) == "packet" or bool(written(answer))


def must_be_refused_by_decoder() -> bool:
    """Whether any answer but a refusal breaks the statements."""
    return "refused" in json.loads(RIGHT_ANSWER) and json.loads(TEST_REQUEST)["do"] == "decode"


def is_same(recorded: dict[str, object], now: dict[str, object]) -> bool:
    """Whether two answers mean the same; the words of a reason may differ."""
    kind = kind_of(recorded)
    if kind in FAILURES:
        return kind_of(now) in FAILURES
    if kind != kind_of(now):
        return False
    if kind == "packet":
        taken = recorded.get("taken", -1), now.get("taken", -1)
        packets = [json.dumps(each["packet"], sort_keys=True) for each in (recorded, now)]
        return packets[0] == packets[1] and (-1 in taken or taken[0] == taken[1])
    return kind != "hex" or written(recorded) == written(now)


def find_violation(now: dict[str, object]) -> str:
    """How the answer to the test breaks the statements, as a sentence; "" if it does not.

    Raises ReproductionStopped if it shows neither.
    """
    recorded = json.loads(TEST_ANSWER)
    kind = kind_of(now)
    wrong = "hex" if json.loads(TEST_REQUEST)["do"] == "decode" else "packet"
    if kind in ("cannot", "unclear", wrong):
        raise ReproductionStopped("the adapter gives no answer that could be compared")
    if kind in FAILURES and kind_of(recorded) not in FAILURES:
        raise ReproductionStopped(visible(f"the test has no answer: {now[kind]}"))
    if is_same(recorded, now):
        return FOUND
    if must_be_refused_by_decoder() and kind != "refused":
        return "the answer is not the recorded one, but the decoder does not refuse it either"
    return ""


def visible(text: str) -> str:
    """The text on one line; what is not printable is written as an escape sequence."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )


def join(command: list[str]) -> str:
    return " ".join(shlex.quote(word) for word in command)


def show_request(arm: str, text: str) -> None:
    """Show a request so that its bytes or its packet can be used without the adapter."""
    request = json.loads(text)
    if request["do"] == "decode":
        data = bytes.fromhex(request["hex"])
        sender = SENDERS.get(request["direction"], "either side may send them")
        print(f"{arm}: decode {counted(data)} of MQTT {VERSION} ({sender})")
        show_bytes(data)
    else:
        print(f"{arm}: encode this packet of MQTT {VERSION}")
        print("    " + visible(json.dumps(request["packet"])))


def show_answer(title: str, answer: dict[str, object]) -> None:
    data = written(answer)
    if kind_of(answer) == "hex" and data:
        print(f"  {title}: {counted(data)}")
        show_bytes(data)
        return
    text = visible(json.dumps(answer))
    if len(text) > LONGEST_SHOWN:
        text = f"{text[:LONGEST_SHOWN]}... ({len(text)} characters)"
    print(f"  {title}: {text}", flush=True)


def counted(data: bytes) -> str:
    return "this byte" if len(data) == 1 else f"these {len(data)} bytes"


def show_bytes(data: bytes) -> None:
    for at in range(0, len(data), 32):
        print("    " + data[at : at + 32].hex(" "), flush=True)


def run(adapter: AdapterProgram) -> str:
    """Ask the adapter about the control and the test; the violation as `find_violation` says it.

    Raises ReproductionStopped.
    """
    hello = adapter.ask({"do": "hello"}, START_TIMEOUT)
    if kind_of(hello) in FAILURES:
        raise ReproductionStopped(visible(str(hello[kind_of(hello)])))
    print(visible(f"Codec: {hello.get('name')} {hello.get('version')}"[:300]))
    if CONTROL_REQUEST:
        print()
        show_request("control, which is right", CONTROL_REQUEST)
        answer = adapter.ask(json.loads(CONTROL_REQUEST), TIMEOUT)
        show_answer("answer", answer)
        if is_accepted(json.loads(CONTROL_ANSWER)) and not is_accepted(answer):
            raise ReproductionStopped("the control failed: it was accepted when it was recorded")
    print()
    show_request("test", TEST_REQUEST)
    right = json.loads(RIGHT_ANSWER)
    if right.get("hex") != "":
        show_answer("right answer", right)
    show_answer("answer as recorded", json.loads(TEST_ANSWER))
    answer = adapter.ask(json.loads(TEST_REQUEST), TIMEOUT)
    show_answer("answer", answer)
    return find_violation(answer)


def main(words: list[str]) -> int:
    # Terminals that cannot show a character get an escape sequence.
    getattr(sys.stdout, "reconfigure", lambda **_: None)(errors="backslashreplace")
    command = words[1:] if words else COMMAND
    if not command or words[:1] not in ([], ["--"]):
        print(f"usage: python3 {sys.argv[0]} [-- adapter command]")
        return 2
    print(f"{CASE}, MQTT {VERSION}\nThe codec must do this: {REQUIRED}")
    for number, sentence in STATEMENTS:
        print(f"  [{number}] {sentence}")
    print(f"Adapter: {visible(join(command))}", flush=True)
    try:
        with tempfile.TemporaryFile() as errors:
            adapter = AdapterProgram(command, errors)
            try:
                violation = run(adapter)
            finally:
                adapter.close()
    except ReproductionStopped as reason:
        print(f"\n{reason}: nothing is proved")
        return 2
    if not violation:
        print("\nNOT REPRODUCED: the codec does not answer as it was recorded.")
        return 0
    print("\nVIOLATED: " + violation)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
