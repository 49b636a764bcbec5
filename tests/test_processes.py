"""Running processes, as /proc lists them."""

import os
import subprocess
import sys

from semel.processes import descendants, list_processes, process_start, read_process

# A process whose name has whatever a parser of /proc could stumble over.
NAMED = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b"a) R 1 (b", 0, 0, 0)
print("named", flush=True)
time.sleep(600)
"""


def test_this_process_is_listed_with_its_parent_and_session() -> None:
    found = list_processes()[os.getpid()]
    assert found == read_process(os.getpid())
    assert (found.parent, found.session) == (os.getppid(), os.getsid(0))
    assert found.started == process_start(os.getpid()) > 0


def test_a_name_may_contain_anything() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NAMED], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = read_process(process.pid)
        process.kill()
    assert found is not None
    assert (found.name, found.parent, found.session) == ("a) R 1 (b", os.getpid(), process.pid)


def test_a_process_that_has_ended_is_not_running() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        # It is a zombie until somebody waits for it.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert read_process(process.pid) is None
        assert process_start(process.pid) == 0
        assert process.pid not in list_processes()
    assert read_process(process.pid) is None


def test_descendants_are_children_of_children_too() -> None:
    program = "import subprocess, sys; subprocess.run(['sleep', '600'])"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        while len(found := descendants([process.pid], list_processes())) < 1:
            assert process.poll() is None
        assert {process.pid, *found} <= set(descendants([os.getpid()], list_processes()))
        for pid in (process.pid, *found):
            os.kill(pid, 9)
