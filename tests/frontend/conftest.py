"""An engine for the tests that ask it something and leave it as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM
from tests.frontend.tiny_llm import make_llm


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return make_llm(tiny_model)
