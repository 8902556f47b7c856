"""What makes two blocks the same: everything from the first token on, and nothing else."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from octavo.kv_cache.hashing import (
    NO_DIGEST,
    BlockHash,
    encode_extra_keys,
    extend_block_hashes,
    hash_block,
)
from octavo.types.requests import MediaSpan
from tests.kv_cache.driver import a_request


def hashes_of(token_ids: list[int], block_size: int = 4, **fields: object) -> list[BlockHash]:
    request = a_request(token_ids, **fields)
    extend_block_hashes(request, len(token_ids), block_size)
    return request.block_hashes


def keys_of(start: int, **fields: object) -> list[list[object]]:
    extra_keys = encode_extra_keys(a_request(list(range(20)), **fields), start, 4)
    return msgspec.msgpack.decode(extra_keys) if extra_keys else []


def test_the_same_tokens_after_another_block_are_another_block() -> None:
    suffix = [5, 6, 7, 8]
    after_x, after_y = hashes_of([1, 1, 1, 1, *suffix]), hashes_of([2, 2, 2, 2, *suffix])
    assert after_x[1].token_bytes == after_y[1].token_bytes
    assert after_x[1].digest != after_y[1].digest
    assert hashes_of(suffix)[0].digest not in (after_x[1].digest, after_y[1].digest)


def test_no_first_block_has_the_hash_of_a_later_block() -> None:
    """Its tokens and extra keys may spell another's parent and tokens."""
    later = hash_block(hash_block(NO_DIGEST, range(8)).digest, range(8, 16))
    spelled = array("i", hash_block(NO_DIGEST, range(8)).digest)
    assert hash_block(NO_DIGEST, spelled, later.token_bytes).digest != later.digest


def test_a_difference_in_the_first_block_runs_through_the_whole_chain() -> None:
    one, other = list(range(40)), [99, *range(1, 40)]
    assert not {h.digest for h in hashes_of(one)} & {h.digest for h in hashes_of(other)}


@pytest.mark.parametrize(
    ("length", "num_full"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2)], ids=lambda value: str(value)
)
def test_only_full_blocks_are_hashed(length: int, num_full: int) -> None:
    assert len(hashes_of(list(range(length)))) == num_full


def test_hashes_extended_in_steps_equal_hashes_made_at_once() -> None:
    fields = {"cache_salt": "salt", "media": (MediaSpan("image", 6, 9),)}
    request = a_request(list(range(30)), **fields)
    for num_tokens in (0, 3, 5, 5, 16, 29, 30):
        extend_block_hashes(request, num_tokens, 4)
        assert len(request.block_hashes) == num_tokens // 4
    assert request.block_hashes == hashes_of(request.token_ids, **fields)


def test_tokens_past_the_given_number_are_not_hashed() -> None:
    request = a_request(list(range(100)))
    extend_block_hashes(request, 9, 4)
    assert request.block_hashes == hashes_of(list(range(8)))


def test_salts_and_adapters_separate_every_block_of_the_chain() -> None:
    token_ids = list(range(12))
    chains = [
        hashes_of(token_ids, cache_salt=salt, adapter=adapter)
        for salt in (None, "a", "b", "")
        for adapter in (None, "a", "b", "")
    ]
    assert len({h.digest for chain in chains for h in chain}) == 16 * 3


def test_the_first_block_alone_has_salt_and_adapter_in_its_keys() -> None:
    fields = {"cache_salt": "pepper", "adapter": "french"}
    assert keys_of(0, **fields) == [["adapter", "french"], ["salt", "pepper"]]
    assert keys_of(4, **fields) == []


def test_every_block_that_media_touch_has_them_in_its_keys_with_their_place() -> None:
    media = (MediaSpan("a", 1, 2), MediaSpan("b", 3, 6), MediaSpan("c", 12, 1))
    assert keys_of(0, media=media) == [["media", "a", 1], ["media", "b", 3]]
    assert keys_of(4, media=media) == [["media", "b", -1]]
    assert keys_of(8, media=media) == [["media", "b", -5]]
    assert keys_of(12, media=media) == [["media", "c", 0]]
    assert keys_of(16, media=media) == []


def test_media_change_the_hashes_of_their_blocks_and_all_later_ones() -> None:
    token_ids = list(range(16))
    plain, shown, other = (
        hashes_of(token_ids, media=media) for media in ((), (MediaSpan("a", 5, 2),), (MediaSpan("b", 5, 2),))
    )
    assert plain[0] == shown[0] == other[0]
    assert len({h.digest for chain in (plain, shown, other) for h in chain[1:]}) == 9


def test_a_salt_cannot_be_imitated_by_tokens() -> None:
    salted = hashes_of([1, 2, 3, 4], cache_salt="abcd")[0]
    forged = int.from_bytes(salted.extra_keys[-4:], "little")
    assert hash_block(NO_DIGEST, [1, 2, 3, 4]).digest != salted.digest
    assert hash_block(NO_DIGEST, [1, 2, 3, 4, forged]).digest != salted.digest


def test_the_digest_is_cryptographic_and_the_same_in_every_process() -> None:
    block_hash = hash_block(NO_DIGEST, [1, 2, 3])
    assert len(block_hash.digest) == 32
    # SHA-256 of 32 zeros and the three ids as little-endian int32.
    assert block_hash.digest.hex() == "3db346a400ab6b8db792fcf156443a8885b27db208362dcf77084f8c7648e645"


def test_the_largest_token_id_can_be_hashed() -> None:
    assert hash_block(NO_DIGEST, [2**31 - 1]).token_bytes == (2**31 - 1).to_bytes(4, "little")
