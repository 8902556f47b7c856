"""Which of the ways run with --all only."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark Gemma 3 on the reference backend, a quarter of the cases and half of the time. The native backend
    runs Gemma 3, and the reference backend runs a Llama, without --all too.
    """
    for item in items:
        callspec = getattr(item, "callspec", None)
        params = {} if callspec is None else callspec.params
        if (params.get("family"), params.get("backend")) == ("gemma3", "reference"):
            item.add_marker(pytest.mark.slow)
