"""The `octavo` program. Importing it costs click alone: a command's module is imported when it is used."""

from octavo.cli.program import main

__all__ = ["main"]
