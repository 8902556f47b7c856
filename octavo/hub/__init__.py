"""Finds models by name: an alias, a path or a Hugging Face id becomes a GGUF file or a folder on this disk.

The engine calls `resolve_model` and `resolve_tokenizer`. `pull_model` also verifies an alias that is on this
disk, and `available_models` lists what there is. This package does not read the contents of model files. It
is cheap to import: modules that download, hash or connect to the hub are imported when they are needed.
"""

from octavo.hub.aliases import ALIASES, Alias
from octavo.hub.listing import ListedModel, available_models
from octavo.hub.resolve import pull_model, resolve_model, resolve_tokenizer

__all__ = [
    "ALIASES",
    "Alias",
    "ListedModel",
    "available_models",
    "pull_model",
    "resolve_model",
    "resolve_tokenizer",
]
