"""Reads the small JSON files of a Hugging Face folder. Every error is a WeightError."""

from __future__ import annotations

import json
import reprlib
from pathlib import Path
from typing import Any

from octavo.errors import WeightError


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file `path`. Raises WeightError for a file that cannot be read or holds none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WeightError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise WeightError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise WeightError(f"{path} holds {reprlib.repr(content)}; it must be a JSON object")
    return content
