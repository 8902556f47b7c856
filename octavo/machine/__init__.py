"""The machine this process runs on: its processors, its memory, and how much of both the process may use."""
