"""Models from a name: an alias, a path, or a Hugging Face id becomes a GGUF file or a folder on this disk.

`resolve_model` is the one question the rest of Octavo asks; `available_models` and `cached_models` are what
a listing shows. What lies in a model file is not known here. Importing this package costs next to nothing:
whatever downloads, hashes or talks to the hub is imported when it is needed.
"""

from octavo.hub.aliases import ALIASES, DEFAULT_MODEL, Alias
from octavo.hub.errors import DownloadError
from octavo.hub.listing import ListedModel, available_models, cached_models
from octavo.hub.resolve import resolve_model

__all__ = [
    "ALIASES",
    "DEFAULT_MODEL",
    "Alias",
    "DownloadError",
    "ListedModel",
    "available_models",
    "cached_models",
    "resolve_model",
]
