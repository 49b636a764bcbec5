"""Records `semel demo` on a terminal, as the animated picture docs/images/demo.svg.

    python -m tests.lab.demo_recording [--speed 6] [--file docs/images/demo.svg] [-- OPTION …]

A real run on a pseudo-terminal: every line of the picture was printed by it. Only the time is
shortened, and the line that is updated in place changes less often. The options after `--` are
those of `semel demo`.

A line of the screen is a <text> for each content that it had, and CSS shows each at its time; when
the screen scrolls, all of them move. No script is needed, so the picture moves in a README. Where
motion is unwanted or unknown, it shows the end of the run.
"""

import argparse
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "demo.svg"
# The last line of the demo has 103 characters.
COLUMNS = 106
ROWS = 20
# How long a picture shows one content of a line at least, and the end of the run, in seconds.
SHORTEST = 0.4
LAST = 8.0
# What a program may write that has an effect on the screen; else a character is shown.
CONTROL = re.compile(r"\x1b\[(\d*)([A-Za-z])|\r|\n")

# In pixels. A character of a monospaced font is at most 0.61 of its size wide.
FONT = 13
LINE = 19
LEFT = 18
TOP = 64
WIDTH = round(COLUMNS * FONT * 0.61) + 2 * LEFT
HEIGHT = TOP + ROWS * LINE + 10

Chunk = tuple[float, str]


@dataclass
class Content:
    """What a line of the screen showed, from `start` to `end` seconds after the beginning."""

    line: int
    text: str
    start: float
    end: float | None = None


class Screen:
    """A terminal that never forgets: its lines are counted from the first that was ever shown.

    It knows what semel writes to one: text, newline, return and the deletion of a line's rest.
    Anything else raises ValueError, so that no picture is wrong without notice.
    """

    def __init__(self) -> None:
        self.contents: list[Content] = []
        # When the cursor went down to another line: (seconds, line).
        self.downs: list[tuple[float, int]] = [(0.0, 0)]
        self._line = 0
        self._column = 0
        self._text = ""
        # What the line of the cursor shows: always the last of all contents.
        self._shown: Content | None = None

    def write(self, text: str, now: float) -> None:
        """Show what a program wrote. At one moment a line has one content."""
        place = 0
        for found in CONTROL.finditer(text):
            self._put(text[place : found.start()])
            place = found.end()
            if found[0] == "\r":
                self._column = 0
            elif found[0] == "\n":
                self._keep(now)
                self._line += 1
                self._text = ""
                self._shown = None
                self.downs.append((now, self._line))
            elif found[2] == "K" and found[1] in ("", "0"):
                self._text = self._text[: self._column]
            elif found[2] != "m":
                raise ValueError(f"the recording does not know the sequence {found[0]!r}")
        self._put(text[place:])
        self._keep(now)

    def _put(self, text: str) -> None:
        if not text:
            return
        if not text.isprintable():
            raise ValueError(f"the recording does not know a character of {text!r}")
        before = self._text[: self._column].ljust(self._column)
        self._text = before + text + self._text[self._column + len(text) :]
        self._column += len(text)

    def _keep(self, now: float) -> None:
        """The line shows its text from now on."""
        shown = self._shown
        if shown is not None and shown.text == self._text:
            return
        if shown is not None:
            shown.end = now
            if shown.start == now:
                self.contents.pop()
        self._shown = Content(self._line, self._text, now) if self._text else None
        if self._shown is not None:
            self.contents.append(self._shown)


def captured(command: list[str]) -> tuple[list[Chunk], int]:
    """What a command writes to a terminal of its own, each chunk with its second; its exit code."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    began = time.monotonic()
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    chunks: list[Chunk] = []
    rest = b""
    while True:
        try:
            data = rest + os.read(controller, 65_536)
        except OSError:  # EIO: nobody has the terminal any more
            break
        # A character, or a sequence such as ESC [ K, may be cut in two.
        whole = data[: len(data) - len(incomplete(data))]
        rest = data[len(whole) :]
        chunks.append((time.monotonic() - began, whole.decode("utf-8")))
    os.close(controller)
    return chunks, process.wait()


def incomplete(data: bytes) -> bytes:
    """The start of a character or of a sequence that data ends with, or nothing."""
    if found := re.search(rb"\x1b(\[\d*)?\Z", data):
        return found[0]
    for size in (1, 2, 3):
        lead = data[-size:][:1]
        if lead >= b"\xc0" and size < (2 if lead < b"\xe0" else 3 if lead < b"\xf0" else 4):
            return data[-size:]
    return b""


def thinned(chunks: list[Chunk], least: float) -> list[Chunk]:
    """The same with fewer moments: chunks that follow within `least` seconds come together."""
    found: list[Chunk] = []
    for now, text in chunks:
        if found and now - found[-1][0] < least:
            found[-1] = (found[-1][0], found[-1][1] + text)
        else:
            found.append((now, text))
    return found


# --- the picture ----------------------------------------------------------------------------------

STYLE = """
    .window { fill: #f6f8fa; stroke: #d0d7de }
    .title { fill: #57606a }
    .dot { fill: #d0d7de }
    text { fill: #1f2328; white-space: pre; font: %(font)dpx ui-monospace, SFMono-Regular, Menlo, \
'DejaVu Sans Mono', 'Liberation Mono', monospace }
    .result { font-weight: 700; fill: #1a7f37 }
    .t, .scroll { animation: %(seconds)ss step-end infinite }
    .past { visibility: hidden }
    @media (prefers-color-scheme: dark) {
      .window { fill: #161b22; stroke: #30363d } .title { fill: #9da7b3 } .dot { fill: #30363d }
      text { fill: #e6edf3 } .result { fill: #3fb950 }
    }
    @media (prefers-reduced-motion: reduce) { .t, .scroll { animation: none } }
"""


def picture(chunks: list[Chunk], *, command: str, speed: float) -> str:
    """The animated picture of a run, `speed` times as fast as it was."""
    screen = Screen()
    for now, text in thinned(chunks, SHORTEST * speed):
        screen.write(text, now / speed)
    (last_second, _), contents = screen.downs[-1], screen.contents
    seconds = round(max(last_second, *(each.start for each in contents)) + LAST, 1)

    def percent(second: float) -> str:
        return f"{100 * second / seconds:.4g}%"

    result = contents[-1].text
    rules: list[str] = []
    texts: list[str] = []
    for number, each in enumerate(contents):
        name = f"t{number}"
        shown = f"0%{{visibility:hidden}}{percent(each.start)}{{visibility:visible}}"
        if each.start == 0:
            shown = "0%{visibility:visible}"
        if each.end is not None:
            shown += f"{percent(each.end)}{{visibility:hidden}}"
        rules.append(f"#{name}{{animation-name:{name}}}@keyframes {name}{{{shown}}}")
        kinds = ["t"]
        kinds += ["past"] if each.end is not None else []
        kinds += ["result"] if each.text == result else []
        texts.append(
            f'<text id="{name}" class="{" ".join(kinds)}" x="{LEFT}" y="{each.line * LINE}">'
            f"{escape(each.text)}</text>"
        )
    # The cursor's line is the last that is shown; the one below a run's last newline is not.
    bottom = contents[-1].line
    moves = {now: min(line, bottom) - ROWS + 1 for now, line in screen.downs}
    steps = "".join(
        f"{percent(now)}{{transform:translateY({-LINE * above}px)}}"
        for now, above in moves.items()
        if above > 0
    )
    rules.append(
        f".scroll{{animation-name:scroll}}@keyframes scroll{{0%{{transform:none}}{steps}}}"
    )
    up = -LINE * max(0, bottom - ROWS + 1)
    took = max(now for now, _ in chunks)
    style = STYLE % {"font": FONT, "seconds": seconds}
    middle = f"semel demo: {took:.0f} s, shown {speed:g} times as fast"
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" \
height="{HEIGHT}" role="img" aria-labelledby="title description">
  <title id="title">A recording of semel demo</title>
  <desc id="description">{escape(described(contents[-1].text, took))}</desc>
  <style>{style}    {"".join(rules)}
  </style>
  <rect class="window" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>
  <circle class="dot" cx="20" cy="17" r="5"/><circle class="dot" cx="38" cy="17" r="5"/>\
<circle class="dot" cx="56" cy="17" r="5"/>
  <text class="title" x="{WIDTH / 2:g}" y="21" text-anchor="middle">{escape(middle)}</text>
  <text x="{LEFT}" y="{TOP - LINE - 3}">$ {escape(command)}</text>
  <svg x="0" y="{TOP - LINE + 3}" width="{WIDTH}" height="{ROWS * LINE + 5}">
  <g transform="translate(0 {LINE - 5})"><g class="scroll" style="transform:translateY({up}px)">
{chr(10).join(texts)}
  </g></g></svg>
</svg>
"""


def described(result: str, took: float) -> str:
    """The recording for those who cannot see it."""
    return (
        f"A terminal in which semel demo runs for {took:.0f} seconds: it publishes messages, cuts "
        f"connections, and kills broker, sealer and Spark. Its last line is: {result}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--speed", type=float, default=6.0, help="how many times as fast")
    parser.add_argument("--file", type=Path, default=PICTURE)
    parser.add_argument("options", nargs="*", help="options of semel demo, after --")
    given = parser.parse_args()
    chunks, code = captured([sys.executable, "-m", "semel", "demo", *given.options])
    if code != 0:
        print("".join(text for _, text in chunks), file=sys.stderr)
        print(f"semel demo ended with {code}: there is no picture", file=sys.stderr)
        return 1
    command = " ".join(["semel", "demo", *given.options])
    given.file.write_text(picture(chunks, command=command, speed=given.speed), "utf-8")
    print(f"{given.file}: {given.file.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
