"""The output of `octavo doctor --program`: the programs that the native backend records for a model."""

from __future__ import annotations

from octavo.backends.native.backend import record_model
from octavo.backends.native.listing import list_program
from octavo.hub import resolve_model
from octavo.models.load import open_model


def describe_programs(name: str) -> str:
    """The programs of the model called `name` (an alias, a path or a hub id), instruction by instruction.

    Raises UnsupportedError for a model that the native backend cannot run.
    """
    forward, logits = record_model(open_model(resolve_model(name)))
    return (
        f"tokens to hidden states:\n{list_program(forward)}\n\n"
        f"hidden states to logits:\n{list_program(logits)}"
    )
