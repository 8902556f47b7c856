from __future__ import annotations

import re

import pytest

from octavo.config import DEFAULT_MODEL
from octavo.hub.aliases import ALIASES, Alias
from octavo.models.registry import GGUF_ARCHITECTURES, find_architecture


def test_default_model_is_the_first_alias() -> None:
    assert next(iter(ALIASES)) == DEFAULT_MODEL


@pytest.mark.parametrize("alias", ALIASES.values(), ids=lambda alias: alias.name)
def test_alias_is_a_word_that_no_path_or_hub_id_can_be_taken_for(alias: Alias) -> None:
    assert re.fullmatch(r"[a-z0-9-]+", alias.name)
    assert ALIASES[alias.name] is alias


@pytest.mark.parametrize("alias", ALIASES.values(), ids=lambda alias: alias.name)
def test_every_part_is_pinned_by_version_size_and_hash(alias: Alias) -> None:
    hashes = [part.sha256_through for part in alias.parts]
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in hashes)
    assert len(set(hashes)) == len(hashes)
    assert all(part.size_bytes > 0 and re.fullmatch(r"[\d.]+", part.wheel.version) for part in alias.parts)
    assert alias.sha256 == hashes[-1]


def test_sizes_are_those_of_the_published_files() -> None:
    assert {name: alias.size_bytes for name, alias in ALIASES.items()} == {
        "smollm2": 98_362_432,
        "gemma3-270m": 253_113_024,
    }


def test_every_alias_can_be_run() -> None:
    for alias in ALIASES.values():
        find_architecture(alias.architecture, GGUF_ARCHITECTURES)
