"""Models that tests run: a tiny random one, made on the spot, and the real ones `make test` fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import DownloadError, ModelNotFoundError
from octavo.hub import resolve_model
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny random model."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, Q4_1."""
    return _cached("smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """The GGUF file of Gemma 3 270M, Q4_K_M."""
    return _cached("gemma3-270m")


def _cached(alias: str) -> Path:
    try:
        return resolve_model(alias, offline=True)
    except (ModelNotFoundError, DownloadError):
        pytest.skip(f"{alias} is not here: run `octavo pull {alias}`, as `make test` does")
