"""Chained block hashes: what makes two blocks the same in the prefix cache.

A block's digest covers its tokens, everything else that its KV depends on (extra keys), and the digest of the
block before it. So equal digests mean equal sequences from the first token on. SHA-256 makes accidental and
deliberate collisions equally hopeless. Tokens are compared on every hit all the same, and from the start of
the sequence where any layer attends to all of it: there a weaker digest would cost hits, never correctness.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from octavo.types.requests import MediaSpan

NO_DIGEST = b""
NO_PARENT = bytes(hashlib.sha256().digest_size)  # stands for the parent's digest in that of a first block
TOKEN_BYTES = 4


class BlockHash(NamedTuple):
    """The identity of one block's content."""

    digest: bytes  # 32 bytes; NO_DIGEST for a block that is not full
    token_bytes: bytes  # the block's token ids, TOKEN_BYTES each, in the machine's order
    extra_keys: bytes  # what besides the tokens its KV depends on, encoded; empty for plain text


class HashedRequest(Protocol):
    """What the cache hashes of a request."""

    token_ids: list[int]
    block_hashes: list[BlockHash]
    cache_salt: str | None
    adapter: str | None

    @property
    def media(self) -> Sequence[MediaSpan]:
        """The spans of the prompt that stand for images and the like, in order."""


def hash_block(parent_digest: bytes, token_ids: Sequence[int], extra_keys: bytes = b"") -> BlockHash:
    """Hash one full block. `parent_digest` is NO_DIGEST for the first block of a sequence."""
    token_bytes = encode_tokens(token_ids)
    # The lengths of parent and tokens are fixed, so plain concatenation is unambiguous.
    digest = hashlib.sha256((parent_digest or NO_PARENT) + token_bytes + extra_keys).digest()
    return BlockHash(digest, token_bytes, extra_keys)


def extend_block_hashes(request: HashedRequest, num_tokens: int, block_size: int) -> None:
    """Append to the request's `block_hashes` the missing hashes of the full blocks among its first
    `num_tokens` tokens.
    """
    hashes = request.block_hashes
    parent = hashes[-1].digest if hashes else NO_DIGEST
    for start in range(len(hashes) * block_size, num_tokens - block_size + 1, block_size):
        extra_keys = encode_extra_keys(request, start, block_size)
        block_hash = hash_block(parent, request.token_ids[start : start + block_size], extra_keys)
        hashes.append(block_hash)
        parent = block_hash.digest


def encode_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids in the form that `BlockHash` has them."""
    return array("i", token_ids).tobytes()


def encode_extra_keys(request: HashedRequest, start: int, block_size: int) -> bytes:
    """The extra keys of the request's block that begins at token `start`, full or not.

    They are a MessagePack list of, in this order: ["adapter", key] and ["salt", salt], in the first block
    only, since the chain of hashes carries them on; and ["media", identifier, offset from the block's start]
    for each span that touches the block. An empty list is encoded as no bytes.
    """
    if start and not request.media:
        return b""
    keys: list[tuple[str | int, ...]] = []
    if start == 0 and request.adapter is not None:
        keys.append(("adapter", request.adapter))
    if start == 0 and request.cache_salt is not None:
        keys.append(("salt", request.cache_salt))
    first = bisect_right(request.media, start, key=lambda span: span.offset + span.num_tokens)
    for span in request.media[first:]:
        if span.offset >= start + block_size:
            break
        keys.append(("media", span.identifier, span.offset - start))
    return msgspec.msgpack.encode(keys) if keys else b""
