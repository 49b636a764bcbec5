"""A driver for the tests of `semel.pipeline.live`, and its workers, without Spark.

As with Spark, the driver is a process that starts workers, and it is workers that attach. The
driver starts one for each line of its input, which is the path of a socket. A worker connects to
it, and does what it is told there: an object a line, and one as the answer.

    {"call": "attach", "options": {…}, "root": "…", "stream": "…"}
                                   {"error": null, "log": ["…"]}
                                   {"error": ["OptionError", "…"], "log": []}
"""

import json
import logging
import os
import socket
import subprocess
import sys


class Lines(logging.Handler):
    """What would be in the driver's log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def drive() -> None:
    """Start workers, until nobody wants any more."""
    for line in sys.stdin:
        subprocess.Popen([sys.executable, "-P", __file__, line.rstrip("\n")])


def work(path: str) -> None:
    """Do what the test says, until it closes the connection."""
    from semel.pipeline import live
    from semel.pipeline.errors import PipelineError

    log = Lines()
    logging.getLogger("semel").addHandler(log)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        # As what Spark gives its workers may be.
        connection.set_inheritable(True)
        with connection.makefile("rw", encoding="utf-8") as file:
            file.write(json.dumps({"pid": os.getpid(), "driver": live.driver()[0]}) + "\n")
            file.flush()
            for line in file:
                task = json.loads(line)
                called = {"attach": live.attach, "check": live.check}[task["call"]]
                error = None
                try:
                    called(task["options"], root=task["root"], stream=task["stream"])
                except PipelineError as problem:
                    error = [type(problem).__name__, str(problem)]
                file.write(json.dumps({"error": error, "log": log.lines}) + "\n")
                file.flush()
                log.lines.clear()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1])
    else:
        drive()
