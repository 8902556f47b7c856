"""The exception of a model that exists but could not be brought here."""

from octavo.errors import OctavoError


class DownloadError(OctavoError, RuntimeError):
    """A model could not be brought here: no network, permission or space. The message says what to do."""
