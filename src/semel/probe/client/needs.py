"""What a program must do by itself, so that a case can be run with it.

The discovery run finds out which of these a program does; MISSING is reported if it does not.
"""

from typing import Final

STAYS: Final = "stays"
SUBSCRIBES: Final = "subscribes"
PUBLISHES: Final = "publishes"
PUBLISHES_QOS_1: Final = "publishes at QoS 1"
PUBLISHES_QOS_2: Final = "publishes at QoS 2"
PUBLISHES_SEVERAL: Final = "publishes several"
PUBLISHES_SEVERAL_QOS_2: Final = "publishes several at QoS 2"
RETAINS: Final = "retains"
RECONNECTS: Final = "reconnects"
RESUMES: Final = "resumes"
STARTS_CLEAN: Final = "starts clean"
KEEPS_ALIVE: Final = "keeps alive"
TAKES_ALIASES: Final = "takes aliases"
USES_WILDCARD: Final = "uses a wildcard"
USES_SHARED: Final = "uses a shared subscription"
USES_IDENTIFIER: Final = "uses a Subscription Identifier"
UNSUBSCRIBES: Final = "unsubscribes"

MISSING: Final = {
    STAYS: "the program did not stay connected until it had answered a PUBLISH",
    SUBSCRIBES: "the program did not subscribe in this run",
    PUBLISHES: "the program did not publish in this run",
    PUBLISHES_QOS_1: "the program did not publish at QoS 1 in this run",
    PUBLISHES_QOS_2: "the program did not publish at QoS 2 in this run",
    PUBLISHES_SEVERAL: "the program never had two PUBLISH packets open at once in this run",
    PUBLISHES_SEVERAL_QOS_2: "the program never had two PUBLISH packets of QoS 2 open at once",
    RETAINS: "the program published nothing with RETAIN 1 in this run",
    RECONNECTS: "the program did not connect again after its connection was cut",
    RESUMES: "the program did not connect again to resume its session after a cut",
    STARTS_CLEAN: "the program does not begin with a clean session",
    KEEPS_ALIVE: "the Keep Alive of the program is 0 or too long to wait for: use {keep_alive}",
    TAKES_ALIASES: "the CONNECT of the program allows no Topic Alias",
    USES_WILDCARD: "the program subscribed to no filter with a wildcard in this run",
    USES_SHARED: "the program has no shared subscription in this run",
    USES_IDENTIFIER: "the program used no Subscription Identifier in this run",
    UNSUBSCRIBES: "the program did not unsubscribe in this run",
}
