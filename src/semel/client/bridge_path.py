"""The path of a bridged message: a User Property that lists the brokers that it came from.

A bridge adds the name of the source broker, and does not move a message whose path has the name of
the source or of the destination: it has been there. So a message ends its way over a ring of
brokers. No Local stops the messages that a bridge itself has published; the path stops those that
come back through other bridges.
"""

from typing import Final

from semel.mqtt.properties import USER_PROPERTY, Properties, PropertyItem

PATH_PROPERTY: Final = "semel-bridge-path"
SEPARATOR: Final = ">"
# The most brokers that a message may have come from.
MAXIMUM_HOPS: Final = 16
# The longest name of a bridge or a broker, in characters; and the longest name in a path, where a
# broker without a name is called by its bridge.
MAXIMUM_NAME: Final = 64
MAXIMUM_PATH_NAME: Final = MAXIMUM_NAME + len(".remote")


def read_path(properties: Properties) -> list[str]:
    """The names of the brokers that the message came from, the first first."""
    names: list[str] = []
    for key, value in properties.user_properties:
        if key == PATH_PROPERTY:
            # A publisher may have set any value: do not split more of it than is needed.
            names += value.split(SEPARATOR, MAXIMUM_HOPS + 1)
    return names


def is_looping(path: list[str], source: str, destination: str) -> bool:
    """Whether the message has been at one of these brokers before, or its path has no room."""
    if source in path or destination in path or len(path) >= MAXIMUM_HOPS:
        return True
    # No bridge writes such a name, and the path must not grow beyond what a property can have.
    return any(len(name) > MAXIMUM_PATH_NAME for name in path)


def with_path(properties: Properties, path: list[str]) -> Properties:
    """The properties with this path instead of any other."""
    items: list[PropertyItem] = [
        item
        for item in properties.items
        if not (
            item[0] == USER_PROPERTY and isinstance(item[1], tuple) and item[1][0] == PATH_PROPERTY
        )
    ]
    items.append((USER_PROPERTY, (PATH_PROPERTY, SEPARATOR.join(path))))
    return Properties(items)
