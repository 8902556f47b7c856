"""Chained block hashes: what makes two blocks the same in the prefix cache.

A block's digest covers its tokens, everything else its KV depends on (extra keys), and its parent's digest,
so equal digests mean equal sequences from the first token on. SHA-256 makes accidental and deliberate
collisions equally hopeless; the pool compares tokens on every hit all the same, so a weaker digest would cost
hits, never correctness.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

NO_PARENT = b""


class BlockHash(NamedTuple):
    """The identity of one full block's content."""

    digest: bytes  # 32 bytes
    token_bytes: bytes  # the block's token ids, 4 bytes each
    extra_keys: bytes  # what besides the tokens its KV depends on, encoded; empty for plain text


def hash_block(parent_digest: bytes, token_ids: Sequence[int], extra_keys: bytes = b"") -> BlockHash:
    """Hash one full block. `parent_digest` is NO_PARENT for the first block of a sequence."""
    token_bytes = array("i", token_ids).tobytes()
    # The lengths of parent and tokens are fixed, so plain concatenation is unambiguous.
    digest = hashlib.sha256(parent_digest + token_bytes + extra_keys).digest()
    return BlockHash(digest, token_bytes, extra_keys)


def extend_block_hashes(
    hashes: list[BlockHash],
    token_ids: Sequence[int],
    num_tokens: int,
    block_size: int,
    cache_salt: str | None,
) -> None:
    """Append to `hashes` those of the full blocks among the first `num_tokens` of `token_ids` that it lacks.

    `cache_salt` enters the first block, and so through the chain every other.
    """
    parent = hashes[-1].digest if hashes else NO_PARENT
    for start in range(len(hashes) * block_size, num_tokens - block_size + 1, block_size):
        extra = msgspec.msgpack.encode(("salt", cache_salt)) if cache_salt is not None and start == 0 else b""
        block_hash = hash_block(parent, token_ids[start : start + block_size], extra)
        hashes.append(block_hash)
        parent = block_hash.digest
