"""semel: strict MQTT 3.1.1 and 5.0. Each rule is stated once; each message lands once.

Importing this package imports nothing else; the rooms (`semel.mqtt`, ...) are imported by name.
"""

from typing import Final

# The one home of the version: the build reads it from here, without importing.
__version__: Final = "0.1.0"
