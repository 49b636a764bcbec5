"""`python -m semel` is the `semel` command."""

import sys


def main() -> None:
    """Run the command line and exit."""
    try:
        from semel.cli import main as run
    except KeyboardInterrupt:
        # Ctrl-C during the imports, before any command has begun.
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
