"""Names of tables and columns in Spark SQL."""


def quoted_name(name: str) -> str:
    """A name with any characters, as Spark SQL quotes it."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
