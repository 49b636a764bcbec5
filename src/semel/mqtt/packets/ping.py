"""PINGREQ and PINGRESP [3.12, 3.13]: packets without content."""

from dataclasses import dataclass
from typing import final

from mypy_extensions import mypyc_attr


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class PingReq:
    """A client keeps the connection alive, and checks that the server answers."""

    def __init__(self) -> None:
        pass


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class PingResp:
    """The server's answer to PINGREQ."""

    def __init__(self) -> None:
        pass
