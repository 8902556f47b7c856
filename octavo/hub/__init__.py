"""Models from a name: an alias, a path, or a Hugging Face id becomes a GGUF file or a folder on this disk.

`resolve_model` and `resolve_tokenizer` are what the rest of Octavo asks; `pull_model` is for a user who wants
to be sure of a model, and `available_models` is what a listing shows. What lies in a model file is not known
here. Importing this package costs next to nothing: whatever downloads, hashes or talks to the hub is imported
when it is needed.
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
