"""A part whose log says how serious its lines are: real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from semel.up.levels import FAILED, MODULE, WELL, WRONG, split
from tests.broker.live import PATIENCE

# As a command of semel does it: it sets up its log itself, and otherwise.
PROGRAM = """
import logging, sys
logging.basicConfig(stream=sys.stdout, level=logging.ERROR, format="%(asctime)s %(message)s")
log = logging.getLogger("semel.test")
log.debug("details")
log.info("all is %s", "well")
log.warning("something is wrong")
try:
    raise ValueError("no")
except ValueError:
    log.exception("it failed")
print("printed", sys.argv, __name__)
sys.stderr.write("by hand\n")
sys.exit(3)
"""


def test_each_line_of_a_log_says_how_serious_it_is(tmp_path: Path) -> None:
    (tmp_path / "program_to_run.py").write_text(PROGRAM)
    found = subprocess.run(
        [sys.executable, "-m", MODULE, "-m", "program_to_run", "one", "--two"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert found.returncode == 3
    program = str(tmp_path / "program_to_run.py")
    assert found.stdout == f"printed {[program, 'one', '--two']} __main__\n"
    lines = [split(line) for line in found.stderr.splitlines()]
    # A thread writes the log, so a line from elsewhere may come before it.
    lines.remove((None, "by hand"))
    assert lines[:3] == [
        (WELL, "all is well"),
        (WRONG, "something is wrong"),
        (FAILED, "it failed"),
    ]
    assert lines[3] == (FAILED, "Traceback (most recent call last):")
    assert lines[-1] == (FAILED, "ValueError: no")
    assert {level for level, _ in lines[3:]} == {FAILED}


@pytest.mark.parametrize("line", ["", "<", "<4", "<9>word", "word <4>", "<44>word"])
def test_what_has_no_sign_is_left_as_it_is(line: str) -> None:
    assert split(line) == (None, line)
    assert split(f"<4>{line}") == (WRONG, line)
