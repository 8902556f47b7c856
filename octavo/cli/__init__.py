"""The `octavo` program. Importing this package is cheap: click is imported when the program runs, and a
command's module when the command is used.
"""

from __future__ import annotations

import gc
import sys

# The objects that a start makes stay alive. Python's default, a collection after every 700 objects, takes a
# twelfth of the start-up time.
_OBJECTS_BETWEEN_COLLECTIONS = 50_000

INTERRUPTED = 130  # the exit status of a program that Ctrl-C ended: 128 + SIGINT


def main() -> None:
    """Run the program with the arguments of this process, and end the process."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    try:
        from octavo.cli.program import run_program

        run_program()
    except KeyboardInterrupt:  # before a command has begun
        sys.exit(INTERRUPTED)
