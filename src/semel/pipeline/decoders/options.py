"""Options of decoders: names and values, checked once, where the decoder is made."""

from collections.abc import Collection, Mapping
from pathlib import Path

from semel.pipeline.errors import OptionError


def check_option_names(decoder: str, options: Mapping[str, object], known: Collection[str]) -> None:
    """Raises OptionError if an option is not one of `known`."""
    for name in options:
        if name not in known:
            hint = f"its options are {', '.join(known)}" if known else "it has none"
            raise OptionError(f"decoder {decoder} has no option {name}: {hint}")


def text_option(decoder: str, options: Mapping[str, object], name: str) -> str | None:
    """The text of an option, or None if it is not given. Raises OptionError."""
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise OptionError(f"option {name} of decoder {decoder} must be text, not {value!r}")
    return value


def flag_option(decoder: str, options: Mapping[str, object], name: str) -> bool:
    """The value of a boolean option; false by default. Raises OptionError."""
    value = options.get(name, False)
    if not isinstance(value, bool):
        raise OptionError(
            f"option {name} of decoder {decoder} must be true or false, not {value!r}"
        )
    return value


def read_option_file(decoder: str, name: str, path: str) -> bytes:
    """The content of the file that an option names. Raises OptionError."""
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise OptionError(f"option {name} of decoder {decoder}: {path}: {reason}") from None
    except ValueError:
        # A path with a zero character.
        raise OptionError(f"option {name} of decoder {decoder}: {path!r} is no path") from None
