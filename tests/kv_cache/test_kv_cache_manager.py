"""The manager's verbs, each alone: hits, admission, all-or-nothing allocation, publication and return."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from octavo.kv_cache import hashing
from octavo.kv_cache.hashing import BlockHash
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.scheduler.request import Request
from octavo.types.params import SamplingParams
from tests.kv_cache.driver import a_request, generate, make_manager, num_cached, start, table_of

# ------------------------------------------------------------------------------------------------------- hits


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 33])
def test_an_exact_resend_of_a_running_request_hits_all_but_the_last_token(
    block_size: int, length: int
) -> None:
    manager = make_manager(100, block_size)
    prompt = list(range(length))
    assert start(manager, a_request(prompt)) is not None
    again = start(manager, a_request(prompt))
    assert again is not None
    assert again[0] == length - 1


def test_a_longer_prompt_hits_the_whole_of_the_shorter_one() -> None:
    manager = make_manager(100)
    _, first_ids = start(manager, a_request(list(range(10))))
    num_hit, block_ids = start(manager, a_request([*range(10), 50, 51]))
    assert num_hit == 10
    assert block_ids[:2] == first_ids[:2]
    assert block_ids[2] not in first_ids


def test_a_shorter_prompt_hits_the_beginning_of_a_longer_one() -> None:
    manager = make_manager(100)
    start(manager, a_request(list(range(30))))
    assert start(manager, a_request(list(range(6))))[0] == 5
    assert start(manager, a_request(list(range(3))))[0] == 2
    assert start(manager, a_request(list(range(5))))[0] == 4


def test_generated_tokens_are_hit_like_prompt_tokens() -> None:
    manager = make_manager(100)
    request = a_request([1, 2, 3])
    start(manager, request)
    for token_id in range(10, 16):
        generate(manager, request, token_id)
    assert start(manager, a_request([*request.token_ids, 99]))[0] == 8


def test_full_blocks_are_found_as_soon_as_their_step_is_planned() -> None:
    manager = make_manager(100)
    prompt = list(range(16))
    first = a_request(prompt)
    hit = manager.get_computed_blocks(first)
    manager.allocate_slots(first, 11, hit)
    assert manager.get_computed_blocks(a_request(prompt)).num_tokens == 8


def test_tokens_that_are_not_known_when_their_step_is_planned_are_found_once_they_are_computed() -> None:
    manager = make_manager(100)
    request = a_request([1, 2, 3])
    start(manager, request)
    manager.allocate_slots(request, 1)
    manager.start_step(1)
    request.num_computed_tokens = 4
    manager.allocate_slots(request, 1)  # it was not known yet what the fourth token is
    request.token_ids.append(4)
    assert num_cached(manager, [1, 2, 3, 4, 5]) == 3
    manager.cache_blocks(request, 4)
    assert num_cached(manager, [1, 2, 3, 4, 5]) == 4


def test_the_same_block_after_another_beginning_is_no_hit() -> None:
    manager = make_manager(100)
    start(manager, a_request([1, 1, 1, 1, 5, 6, 7, 8, 9]))
    assert start(manager, a_request([2, 2, 2, 2, 5, 6, 7, 8, 9]))[0] == 0
    assert start(manager, a_request([5, 6, 7, 8, 9]))[0] == 0


def test_only_equal_salts_share_blocks() -> None:
    manager = make_manager(100)
    prompt = list(range(9))
    for salt in (None, "a", "b"):
        assert start(manager, a_request(prompt, cache_salt=salt))[0] == 0
    for salt in (None, "a", "b"):
        assert start(manager, a_request(prompt, cache_salt=salt))[0] == 8


def test_a_request_that_wants_its_prompt_computed_hits_nothing_but_may_be_hit() -> None:
    manager = make_manager(100)
    prompt = list(range(9))
    for params in (SamplingParams(skip_reading_prefix_cache=True), SamplingParams(prompt_logprobs=1)):
        for _ in range(2):
            assert start(manager, a_request(prompt, params=params))[0] == 0
    assert start(manager, a_request(prompt))[0] == 8


def test_without_caching_nothing_is_hit_or_hashed() -> None:
    manager = make_manager(100, caching=False)
    for _ in range(2):
        request = a_request(list(range(9)))
        assert start(manager, request)[0] == 0
        assert request.block_hashes == []


def test_looking_for_a_hit_holds_nothing() -> None:
    manager = make_manager(5)
    request = a_request(list(range(9)))
    start(manager, request)
    manager.free(request)
    before = [block.block_id for block in manager.pool.free_block_queue]
    assert manager.get_computed_blocks(a_request(list(range(9)))).num_tokens == 8
    assert [block.block_id for block in manager.pool.free_block_queue] == before
    manager.check()


def test_a_hit_that_was_evicted_meanwhile_is_not_seen_by_the_next_look() -> None:
    manager = make_manager(5)
    old = a_request(list(range(9)))
    start(manager, old)
    manager.free(old)
    again = a_request(list(range(9)))
    assert manager.get_computed_blocks(again).num_tokens == 8
    other = a_request(list(range(50, 66)))
    start(manager, other)
    assert manager.get_computed_blocks(again).num_tokens == 0


def test_two_groups_hit_as_far_as_both_have_the_blocks() -> None:
    manager = make_manager(40, num_groups=2)
    prompt = list(range(17))
    first = a_request(prompt)
    start(manager, first)
    lost = table_of(manager, first, group_id=1)[2]
    manager.free(first)
    manager.pool.index.remove(lost)
    hit = manager.get_computed_blocks(a_request(prompt))
    assert hit.num_tokens == 8
    assert [len(blocks) for blocks in hit.blocks] == [2, 2]


def test_the_beginnings_of_old_prompts_stay_longest() -> None:
    manager = make_manager(65)
    a, b = a_request(list(range(80))), a_request(list(range(100, 180)))
    for request in (a, b):  # 20 blocks each
        start(manager, request)
        manager.free(request)
    start(manager, a_request(list(range(300, 420))))  # 30 blocks, 24 of which were never used
    assert manager.get_computed_blocks(a_request([*a.token_ids, 1])).num_tokens == 14 * 4
    assert manager.get_computed_blocks(a_request([*b.token_ids, 1])).num_tokens == 20 * 4
    assert start(manager, a_request(a.token_ids[:41]))[0] == 40


# ------------------------------------------------------------------------------------------------- collisions


@pytest.mark.parametrize("digest_bits", [0, 8])
def test_outputs_stay_right_when_digests_collide(monkeypatch: pytest.MonkeyPatch, digest_bits: int) -> None:
    strong = hashing.hash_block

    def weak(parent_digest: bytes, token_ids: list[int], extra_keys: bytes = b"") -> BlockHash:
        block_hash = strong(parent_digest, token_ids, extra_keys)
        return block_hash._replace(digest=bytes([block_hash.digest[0] & (2**digest_bits - 1)]))

    monkeypatch.setattr(hashing, "hash_block", weak)
    manager = make_manager(400)
    lies_in: dict[int, list[int]] = {}  # block → the tokens from the start through its end
    for number in range(50):
        prompt = [number % 3, 1, 2, 3, number % 7, 5, 6, 7, number, 9]
        hit = manager.get_computed_blocks(a_request(prompt))
        for index, block in enumerate(hit.blocks[0]):
            assert lies_in[block.block_id] == prompt[: 4 * (index + 1)], "another prompt's block was hit"
        _, block_ids = start(manager, a_request(prompt))
        for index, block_id in enumerate(block_ids[:2]):
            lies_in[block_id] = prompt[: 4 * (index + 1)]
    assert start(manager, a_request([0, 1, 2, 3, 0, 5, 6, 7, 0, 9]))[0] == 9


# ------------------------------------------------------------------------------------------------- allocation


def test_blocks_are_taken_only_when_the_tokens_need_them() -> None:
    manager = make_manager(10)
    request = a_request([1, 2, 3])
    assert start(manager, request)[1] == [1]
    assert generate(manager, request)
    assert manager.usage == pytest.approx(1 / 9)
    assert generate(manager, request)
    assert manager.usage == pytest.approx(2 / 9)


def test_a_chunked_prompt_gets_its_blocks_chunk_by_chunk() -> None:
    manager = make_manager(10)
    request = a_request(list(range(12)))
    assert start(manager, request, 5)[1] == [1, 2]
    assert manager.allocate_slots(request, 3) == ([],)
    request.num_computed_tokens += 3
    assert manager.allocate_slots(request, 4) == ([3],)


@pytest.mark.parametrize("num_groups", [1, 2])
def test_an_allocation_that_does_not_fit_changes_nothing(num_groups: int) -> None:
    manager = make_manager(1 + 3 * num_groups, num_groups=num_groups)
    one, other = a_request(list(range(8))), a_request(list(range(50, 54)))
    start(manager, one)
    start(manager, other)
    free = list(manager.pool.free_block_queue)
    other.token_ids += [1]
    assert manager.allocate_slots(other, 1) is None
    assert start(manager, a_request([9] * 5)) is None
    assert list(manager.pool.free_block_queue) == free
    manager.check()
    assert manager.get_owners() == {one.request_id, other.request_id}


def test_a_hit_that_lies_in_free_blocks_counts_against_the_free_blocks() -> None:
    manager = make_manager(5)
    old = a_request(list(range(8)))
    start(manager, old)
    manager.free(old)
    # Four free blocks, two of which are the hit: three more do not fit.
    assert start(manager, a_request([*range(8), *range(20, 32)])) is None
    assert start(manager, a_request([*range(8), *range(20, 28)])) == (8, [1, 2, 3, 4])


def test_a_hit_is_safe_from_the_allocation_that_follows_it() -> None:
    manager = make_manager(9, num_groups=2)
    old = a_request(list(range(8)))
    start(manager, old)
    manager.free(old)
    hit = manager.get_computed_blocks(a_request([*range(8), 99]))
    held = {block.block_id for blocks in hit.blocks for block in blocks}
    new = a_request([*range(8), *range(30, 37)])
    assert start(manager, new)[0] == 8
    later = [table_of(manager, new, group_id)[2:] for group_id in range(2)]
    assert not held & {block.block_id for blocks in later for block in blocks}


def test_a_request_gives_everything_back_once() -> None:
    manager = make_manager(10)
    request = a_request(list(range(10)))
    start(manager, request)
    manager.free(request)
    manager.free(request)
    assert manager.usage == 0
    manager.check()


def test_freeing_a_request_that_holds_nothing_does_nothing() -> None:
    manager = make_manager(10)
    manager.free(a_request([1]))
    manager.check()


# -------------------------------------------------------------------------------------------- common prefixes


def test_common_blocks_are_those_that_every_running_request_holds() -> None:
    manager = make_manager(40, num_groups=2)
    requests = [a_request([*range(8), tail, tail]) for tail in (50, 60, 70)]
    for request in requests:
        start(manager, request)
    assert manager.get_num_common_prefix_blocks(requests[0], 3) == [2, 2]
    start(manager, a_request([9] * 9))
    assert manager.get_num_common_prefix_blocks(requests[0], 4) == [0, 0]


def test_a_request_that_runs_alone_shares_nothing() -> None:
    manager = make_manager(40)
    request = a_request(list(range(20)))
    start(manager, request)
    assert manager.get_num_common_prefix_blocks(request, 1) == [0]


# ------------------------------------------------------------------------------------------------------ reset


def test_a_reset_is_refused_while_a_request_runs_and_harms_it_not() -> None:
    manager = make_manager(10)
    request = a_request(list(range(9)))
    start(manager, request)
    assert manager.reset_prefix_cache() is False
    assert manager.get_computed_blocks(a_request(list(range(9)))).num_tokens == 8
    manager.free(request)
    assert manager.reset_prefix_cache() is True
    assert start(manager, a_request(list(range(9))))[0] == 0


def test_a_request_hashed_before_a_reset_hits_blocks_published_after_it() -> None:
    manager = make_manager(10)
    waiting = a_request(list(range(9)))
    manager.get_computed_blocks(waiting)
    assert manager.reset_prefix_cache()
    assert manager.get_computed_blocks(waiting).num_tokens == 0
    start(manager, a_request(list(range(9))))
    assert manager.get_computed_blocks(waiting).num_tokens == 8


# --------------------------------------------------------------------------------- corruption that check sees


def lose_a_request(manager: KVCacheManager, request: Request) -> None:
    del manager._blocks_of[request.request_id]


def hold_a_block_twice(manager: KVCacheManager, request: Request) -> None:
    table = table_of(manager, request)
    table[1] = table[0]


def lose_a_block(manager: KVCacheManager, request: Request) -> None:
    table = table_of(manager, request)
    table[1] = manager.pool.null_block


def shorten_a_table(manager: KVCacheManager, request: Request) -> None:
    table_of(manager, request).pop()


def promise_too_much(manager: KVCacheManager, request: Request) -> None:
    manager._num_promised += 1


def copy_for_nobody(manager: KVCacheManager, request: Request) -> None:
    manager._copies["nobody"] = []


def copy_what_is_not_held(manager: KVCacheManager, request: Request) -> None:
    table = table_of(manager, request)
    manager._copies[request.request_id] = [(table[0], table[1])]


@pytest.mark.parametrize(
    ("corrupt", "complaint"),
    [
        (lose_a_request, "should have 0 references"),
        (hold_a_block_twice, "should have 2 references"),
        (lose_a_block, "the tables have 2 blocks, not 3"),
        (shorten_a_table, "tables differ in length"),
        (promise_too_much, "promised blocks do not add up"),
        (copy_for_nobody, "copies are made for requests that do not run"),
        (copy_what_is_not_held, "should have 2 references"),
    ],
)
def test_check_sees_every_kind_of_corruption(
    corrupt: Callable[[KVCacheManager, Request], None], complaint: str
) -> None:
    manager = make_manager(10)
    request = a_request(list(range(9)))
    start(manager, request)
    corrupt(manager, request)
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        manager.check()
