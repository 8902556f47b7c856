"""The fixtures of `tests.scripted_program`."""

from tests.scripted_program import core, octavo

__all__ = ["core", "octavo"]
