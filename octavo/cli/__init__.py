"""The `octavo` program. Importing it costs nothing: click is imported when the program runs, and a command's
module when it is used.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130  # the exit status of a program that Ctrl-C ended: 128 + SIGINT


def main() -> None:
    """Run the program with the arguments of this process, and end the process."""
    try:
        from octavo.cli.program import run_program

        run_program()
    except KeyboardInterrupt:  # so early that no command has begun
        sys.exit(INTERRUPTED)
