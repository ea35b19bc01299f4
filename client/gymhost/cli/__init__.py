"""The `gymhost` command. What a subcommand needs is imported when it is called, so the base install has them all."""

from gymhost.cli.app import main

__all__ = ["main"]
