"""`python -m semel` is the `semel` command."""

from semel.cli import main

main()
