"""What each kind of KV cache holds, gives back, and finds again; and kinds together in one cache."""

from __future__ import annotations

import random

import pytest

from octavo.kv_cache import hashing
from octavo.kv_cache.block import CachedPrefix, KVCacheBlock
from octavo.kv_cache.hashing import BlockHash
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.kv_cache.single_type_kv_cache_manager import MANAGERS, SingleTypeKVCacheManager
from octavo.scheduler.request import Request
from octavo.types.kv import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    LatentAttentionSpec,
    RecurrentStateSpec,
    SlidingWindowSpec,
)
from tests.fake_groups import make_fake_group
from tests.fakes import make_kv_config
from tests.kv_cache.driver import (
    a_request,
    ask,
    finish,
    generate,
    ids_of,
    make_manager,
    num_cached,
    proceed,
    start,
    table_of,
)
from tests.seeds import every_seed

HEADS = (1, 1, 8)


def specs_of(block_size: int, reach: int) -> list[KVCacheSpec]:
    return [
        FullAttentionSpec(block_size, *HEADS),
        LatentAttentionSpec(block_size, latent_size=2, rope_size=1, token_bytes=8),
        SlidingWindowSpec(block_size, *HEADS, window=reach),
        ChunkedLocalAttentionSpec(block_size, *HEADS, chunk_size=reach),
        RecurrentStateSpec(block_size, state_bytes=8),
    ]


def manager_of(spec: KVCacheSpec, num_groups: int = 1) -> SingleTypeKVCacheManager:
    return MANAGERS[type(spec)](spec, tuple(range(num_groups)))


def forget(manager: KVCacheManager, request: Request, group_id: int, index: int) -> None:
    """As if a block of a request that has ended had been used for something else."""
    block = table_of(manager, request, group_id)[index]
    finish(manager, request)
    manager.pool.index.remove(block)


# ------------------------------------------------------------------------------------------------ every kind


@pytest.mark.parametrize("block_size", [1, 3, 4])
@pytest.mark.parametrize("reach", [1, 2, 4, 7, 12])
def test_only_blocks_that_no_token_can_see_are_given_back(block_size: int, reach: int) -> None:
    for spec in specs_of(block_size, reach):
        manager, model = manager_of(spec), make_fake_group(spec)
        for num_computed in range(50):
            assert manager.num_skipped_blocks(num_computed) == model.num_skipped(num_computed)


@every_seed(100)
def test_the_longest_hit_has_every_visible_block_cached(seed: int) -> None:
    rng = random.Random(seed)
    block_size, reach, num_blocks = rng.randint(1, 4), rng.randint(1, 12), 10
    prefixes = []
    for number in range(1, num_blocks + 1):
        prefix = CachedPrefix(BlockHash(b"", b"", b""), number, number - 1, num_groups=2)
        for twins in prefix.blocks:
            twins += [KVCacheBlock(number)] * (rng.random() < 0.8)
        prefixes.append(prefix)
    for spec in specs_of(block_size, reach):
        manager = manager_of(spec, num_groups=2)
        for most in range(num_blocks + 1):
            expected = max(
                stop
                for stop in range(most + 1)
                if all(
                    all(prefix.blocks)
                    for prefix in prefixes[manager.num_skipped_blocks(stop * block_size) : stop]
                )
            )
            assert manager.find_longest_cache_hit(prefixes, most) == expected


@every_seed(50)
def test_a_request_never_holds_more_than_it_was_admitted_on(seed: int) -> None:
    rng = random.Random(seed)
    kind = rng.choice(["full", "window", "chunk", "recurrent"])
    block_size, max_chunk = rng.randint(1, 4), rng.randint(1, 12)
    layout = {"kinds": [kind], "reach": rng.randint(1, 12), "max_chunk": max_chunk}
    manager = make_manager(200, block_size, **layout)
    spec = make_kv_config(1, block_size, **layout).groups[0].spec
    request = a_request(list(range(100)))
    start(manager, request, rng.randint(1, max_chunk))
    while (left := request.num_tokens - request.num_computed_tokens) > 0:
        num_held = len({*ids_of(manager, request)} - {0})
        assert num_held <= spec.num_blocks_for(request.num_computed_tokens, max_chunk)
        assert proceed(manager, request, rng.randint(1, min(max_chunk, left)))


# --------------------------------------------------------------------------------------------------- windows


def test_a_window_gives_back_blocks_that_slide_out_of_it() -> None:
    manager = make_manager(20, kinds=["window"], reach=6)
    request = a_request(list(range(8)))
    _, ids = start(manager, request)
    assert generate(manager, request)  # position 8 sees from position 3
    assert ids_of(manager, request)[:2] == ids
    for _ in range(4):
        generate(manager, request)  # position 12 sees from position 7
    assert ids_of(manager, request)[:2] == [0, ids[1]]
    assert manager.usage == pytest.approx(3 / 19)


def test_a_window_gives_blocks_back_even_if_the_allocation_fails() -> None:
    manager = make_manager(6, kinds=["window"], reach=2, max_chunk=8)
    request = a_request(list(range(16)))
    start(manager, request, 8)
    for first in (50, 60, 70):
        start(manager, a_request(list(range(first, first + 4))))
    assert manager.usage == 1
    assert manager.allocate_slots(request, 8) is None
    assert ids_of(manager, request)[0] == 0
    assert manager.usage == pytest.approx(4 / 5)
    manager.check()


def test_of_blocks_that_slide_out_together_the_last_is_evicted_first() -> None:
    manager = make_manager(7, kinds=["window"], reach=2)
    request = a_request(list(range(17)))
    _, ids = start(manager, request, 16)
    manager.allocate_slots(request, 1)  # takes one of the two blocks that were never used
    assert [block.block_id for block in manager.pool.free_block_queue] == [6, *reversed(ids[:3])]


def test_a_window_hit_takes_no_blocks_before_the_window() -> None:
    manager = make_manager(60, kinds=["window"], reach=6)
    prompt = list(range(24))
    assert ask(manager, prompt) == 0
    request = a_request([*prompt, 50, 51, 52])
    assert start(manager, request)[0] == 24
    ids = ids_of(manager, request)
    assert ids[:4] == [0] * 4  # position 24 sees from position 19
    assert 0 not in ids[4:]


def test_a_gap_within_the_window_shortens_the_hit_and_a_gap_before_it_does_not() -> None:
    for index, expected in ((3, 24), (4, 16), (5, 20)):
        manager = make_manager(60, kinds=["window"], reach=6)
        request = a_request(list(range(24)))
        start(manager, request)
        forget(manager, request, 0, index)
        assert num_cached(manager, [*range(24), 50, 51, 52]) == expected


def test_a_prompt_shorter_than_the_window_is_hit_whole() -> None:
    manager = make_manager(60, kinds=["window"], reach=100)
    ask(manager, list(range(9)))
    assert num_cached(manager, [*range(9), 50]) == 9


def test_windows_of_different_sequences_are_not_put_together() -> None:
    spec = SlidingWindowSpec(4, *HEADS, window=8)
    prefixes = [CachedPrefix(BlockHash(b"", b"", b""), number, number - 1, 1) for number in (1, 2, 3, 4, 5)]
    prefixes[3].parent_id = 77
    for prefix in prefixes:
        prefix.blocks[0].append(KVCacheBlock(prefix.prefix_id))
    assert manager_of(spec).find_longest_cache_hit(prefixes, 5) == 5
    assert manager_of(spec).find_longest_cache_hit(prefixes, 4) == 3


def test_a_window_that_was_never_computed_to_the_end_is_not_hit_there() -> None:
    """Nothing need be seen by a token that begins a chunk, but nobody may claim to have come there."""
    manager = make_manager(60, kinds=["chunk"], reach=8)
    assert num_cached(manager, list(range(20))) == 0
    ask(manager, list(range(10)))
    assert num_cached(manager, list(range(20))) == 10


# ------------------------------------------------------------------------------------------ recurrent states


def test_a_step_leaves_one_state_and_takes_one_with_it() -> None:
    manager = make_manager(20, kinds=["recurrent"])
    request = a_request(list(range(23)))
    manager.allocate_slots(request, 20, manager.get_computed_blocks(request))
    ids = ids_of(manager, request)
    assert ids == [0, 0, 0, 0, 1]
    assert manager.take_blocks_to_zero() == [1]
    request.num_computed_tokens = 20
    assert manager.allocate_slots(request, 3) == ([2],)
    assert manager.take_blocks_to_zero() == [2]
    assert manager.take_blocks_to_zero() == []
    request.num_computed_tokens = 23
    request.token_ids.append(50)
    assert manager.allocate_slots(request, 1) == ([],), "a state is changed in its place"
    request.num_computed_tokens = 24
    request.token_ids.append(51)
    assert manager.allocate_slots(request, 1) == ([1],), "the first one is free again"
    assert manager.take_blocks_to_zero() == [1]
    assert ids_of(manager, request) == [0, 0, 0, 0, 0, 2, 1]
    manager.check()


def test_only_states_at_the_ends_of_blocks_are_found_and_only_the_last_is_needed() -> None:
    manager = make_manager(40, kinds=["recurrent"])
    request = a_request(list(range(23)))
    for count in (6, 6, 8, 3):  # ends at 6, 12, 20 and 23
        _ = (
            proceed(manager, request, count)
            if request.num_computed_tokens
            else start(manager, request, count)
        )
    finish(manager, request)
    found = {length: num_cached(manager, [*range(length), 50]) for length in (8, 12, 16, 20, 23)}
    assert found == {8: 0, 12: 12, 16: 12, 20: 20, 23: 20}
    again = a_request(list(range(22)))
    assert start(manager, again)[0] == 20
    assert ids_of(manager, again)[:4] == [0] * 4


def test_steps_should_end_with_blocks_only_where_states_are_cached() -> None:
    assert make_manager(9, kinds=["recurrent", "full"]).step_alignment == 4
    assert make_manager(9, kinds=["recurrent", "full"], caching=False).step_alignment == 1
    assert make_manager(9, kinds=["window", "full"]).step_alignment == 1


def test_blocks_of_tokens_are_not_zeroed() -> None:
    manager = make_manager(40, kinds=["full", "window", "chunk", "cross"])
    request = a_request(list(range(9)), num_encoder_tokens=7)
    manager.allocate_slots(request, 9, manager.get_computed_blocks(request))
    assert manager.take_blocks_to_zero() == []


# ------------------------------------------------------------------------------------------- cross attention


def test_blocks_for_another_input_come_with_the_first_and_stay() -> None:
    manager = make_manager(40, kinds=["full", "cross"])
    request = a_request(list(range(9)), num_encoder_tokens=7)
    start(manager, request, 2)
    cross = ids_of(manager, request, 1)
    assert len(cross) == 2
    proceed(manager, request, 7)
    assert ids_of(manager, request, 1) == cross
    assert manager.get_num_common_prefix_blocks(request, 1) == [0, 0]
    finish(manager, request)
    assert manager.usage == 0


def test_tokens_that_see_another_input_are_neither_found_nor_find_anything() -> None:
    manager = make_manager(60, kinds=["full", "cross"])
    prompt = list(range(9))
    assert [ask(manager, prompt, num_encoder_tokens=count) for count in (7, 7, 0, 0, 7)] == [0, 0, 0, 8, 0]


def test_without_cross_attention_another_input_changes_nothing() -> None:
    manager = make_manager(60, kinds=["full"])
    assert [ask(manager, list(range(9)), num_encoder_tokens=7) for _ in range(2)] == [0, 8]


# ---------------------------------------------------------------------------------------------------- hybrids


def test_kinds_shorten_each_others_hits_until_all_agree() -> None:
    """The window loses a hit of 6 blocks, the states then one of 5, and the window one of 4."""
    manager = make_manager(200, kinds=["full", "window", "recurrent"], reach=6)
    request = a_request(list(range(28)))
    start(manager, request, 4)
    for _ in range(6):
        proceed(manager, request, 4)
    prefixes = [block.prefix for block in table_of(manager, request)]
    finish(manager, request)
    prompt = list(range(25))
    for group_id, index, expected in ((1, 5, 24), (2, 4, 20), (1, 3, 16)):
        assert num_cached(manager, prompt) == expected
        (lost,) = prefixes[index].blocks[group_id]
        manager.pool.index.remove(lost)
        manager.check()
    assert num_cached(manager, prompt) == 12


def test_blocks_of_one_index_stand_for_one_prefix_in_all_groups() -> None:
    manager = make_manager(200, kinds=["full", "window", "chunk"], reach=6)
    request = a_request(list(range(12)))
    start(manager, request)
    for index in range(3):
        prefixes = {table_of(manager, request, group_id)[index].prefix for group_id in range(3)}
        assert len(prefixes) == 1
        assert None not in prefixes


@pytest.mark.parametrize("digest_bits", [0, 8])
def test_with_full_attention_no_digest_is_believed(monkeypatch: pytest.MonkeyPatch, digest_bits: int) -> None:
    strong = hashing.hash_block

    def weak(parent_digest: bytes, token_ids: list[int], extra_keys: bytes = b"") -> BlockHash:
        block_hash = strong(parent_digest, token_ids, extra_keys)
        return block_hash._replace(digest=bytes([1, block_hash.digest[0] & (2**digest_bits - 1)]))

    monkeypatch.setattr(hashing, "hash_block", weak)
    manager = make_manager(1000, kinds=["window", "full"], reach=6)
    asked: list[list[int]] = []
    rng = random.Random(0)
    for _ in range(60):
        prompt = [token for _ in range(4) for token in (rng.randint(1, 2), 5, 5, 5)] + [9]
        blocks = [prompt[start : start + 4] for start in range(0, 16, 4)]
        longest = max((num_common(blocks, other) for other in asked), default=0)
        assert ask(manager, prompt) // 4 == longest
        asked.append(blocks)


def num_common(one: list[list[int]], other: list[list[int]]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


@pytest.mark.parametrize("kinds", [["full", "full"], ["window", "full"]], ids="+".join)
def test_ends_of_sequences_are_forgotten_first_in_all_groups_alike(kinds: list[str]) -> None:
    manager = make_manager(1 + 20, kinds=kinds, reach=100)
    prompt = list(range(40))
    ask(manager, prompt)
    for num_taken in (4, 10):
        manager.pool.free_blocks(manager.pool.get_new_blocks(num_taken))
        assert num_cached(manager, [*prompt, 99]) == 40 - 4 * num_taken // 2


def test_only_groups_that_keep_all_blocks_have_common_prefix_blocks() -> None:
    manager = make_manager(100, kinds=["window", "full", "recurrent", "cross", "chunk"], reach=6)
    requests = [a_request([*range(8), tail]) for tail in (50, 60)]
    start(manager, requests[0], 8)
    start(manager, requests[1])
    assert manager.get_num_common_prefix_blocks(requests[0], 2) == [0, 2, 0, 0, 0]
