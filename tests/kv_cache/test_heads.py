"""Hits are counted in tokens: after whole blocks, the head of one that goes on differently is copied."""

from __future__ import annotations

import random

import pytest

from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.types.requests import MediaSpan
from tests.kv_cache.driver import (
    a_request,
    ask,
    finish,
    ids_of,
    make_manager,
    num_cached,
    run,
    start,
    table_of,
)
from tests.seeds import every_seed

CACHES = [
    ["full"],
    ["full", "full"],
    ["window"],
    ["window", "window", "full"],
    ["chunk", "full"],
    ["full", "cross"],
]


def take(manager: KVCacheManager) -> list[tuple[int, int]]:
    copies = manager.take_block_copies()
    manager.check()
    return copies


@pytest.mark.parametrize("kinds", CACHES, ids="+".join)
@pytest.mark.parametrize("index", [0, 1, 15, 16, 17, 500, 998, 999])
def test_a_prompt_that_differs_in_one_token_is_computed_from_there(kinds: list[str], index: int) -> None:
    manager = make_manager(1000, 16, kinds=kinds, reach=100)
    prompt = list(range(1000))
    assert ask(manager, prompt) == 0
    assert ask(manager, [*prompt[:index], 7777, *prompt[index + 1 :]]) == index


@pytest.mark.parametrize("kinds", CACHES, ids="+".join)
def test_a_resend_computes_one_token(kinds: list[str]) -> None:
    manager = make_manager(1000, 16, kinds=kinds, reach=100)
    prompt = list(range(1000))
    assert [ask(manager, prompt) for _ in range(3)] == [0, 999, 999]


@every_seed(20)
def test_the_longest_common_beginning_of_many_is_found(seed: int) -> None:
    rng = random.Random(seed)
    manager = make_manager(2000, 4, kinds=rng.choice(CACHES), reach=6)
    asked: list[list[int]] = []
    for _ in range(60):
        prompt = [rng.choice([3, 2**30, 256]) for _ in range(rng.randint(1, 11))]
        longest = max((num_common(prompt, other) for other in asked), default=0)
        assert ask(manager, prompt) == min(longest, len(prompt) - 1)
        asked.append(prompt)


def num_common(one: list[int], other: list[int]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def test_a_head_of_a_block_that_others_still_hold_is_copied_too() -> None:
    manager = make_manager(10)
    running = a_request([1, 2, 3, 4, 5, 6, 7, 8, 9])
    start(manager, running)
    request = a_request([1, 2, 3, 4, 5, 6, 50, 51])
    hit = manager.get_computed_blocks(request)
    assert hit.num_tokens == 6
    (ids,) = manager.allocate_slots(request, 2, hit)
    first, second, _ = ids_of(manager, running)
    assert ids[0] == first
    assert ids[1] not in ids_of(manager, running)
    assert take(manager) == [(second, ids[1])]
    assert take(manager) == []


def test_every_group_that_follows_tokens_is_copied() -> None:
    manager = make_manager(40, kinds=["window", "cross", "full"], reach=6)
    ask(manager, list(range(10)))
    request = a_request([*range(9), 50, 51])
    hit = manager.get_computed_blocks(request)
    block_ids = manager.allocate_slots(request, 2, hit)
    assert hit.num_tokens == 9
    assert [target for _, target in take(manager)] == [block_ids[0][2], block_ids[2][2]]


def test_a_source_stays_as_it_is_until_it_is_copied() -> None:
    manager = make_manager(5)
    ask(manager, [1, 2, 3])
    request = a_request([1, 2, 50])
    hit = manager.get_computed_blocks(request)
    manager.allocate_slots(request, 1, hit)
    ((source,),) = [[block.block_id for block in hit.sources]]
    other = a_request(list(range(60, 72)))
    assert manager.allocate_slots(other, 12, manager.get_computed_blocks(other)) is None
    assert manager.allocate_slots(other, 8, manager.get_computed_blocks(other)) is not None
    assert source not in ids_of(manager, other)
    assert take(manager) == [(source, ids_of(manager, request)[0])]
    assert manager.pool.blocks[source].prefix is not None


def test_a_request_that_leaves_before_its_copy_is_made_wants_none() -> None:
    manager = make_manager(5)
    ask(manager, [1, 2, 3])
    request = a_request([1, 2, 50])
    hit = manager.get_computed_blocks(request)
    manager.allocate_slots(request, 1, hit)
    manager.free(request, 2)
    assert take(manager) == []
    assert manager.usage == 0
    assert num_cached(manager, [1, 2, 51]) == 2


@pytest.mark.parametrize("num_run", [1, 2, 5])
def test_blocks_of_a_failed_step_are_not_found(num_run: int) -> None:
    manager = make_manager(20)
    request = a_request(list(range(10, 18)))
    start(manager, request, num_run)
    assert manager.allocate_slots(request, 8 - num_run) is not None
    manager.start_step(1)
    manager.free(request, num_run)  # it is preempted, and the step runs all the same
    assert num_cached(manager, request.token_ids) == 7
    assert manager.fail_steps() == []
    assert num_cached(manager, request.token_ids) == num_run // 4 * 4
    manager.check()


def test_a_tail_that_is_found_already_is_not_kept_twice() -> None:
    manager = make_manager(10)
    requests = [a_request([1, 2, 3, 4, 5, 6]) for _ in range(2)]
    for request in requests:
        start(manager, request)
    tails = [table_of(manager, request)[1] for request in requests]
    for request in requests:
        finish(manager, request)
    assert tails[0].prefix is not None
    assert tails[1].prefix is None
    assert next(iter(manager.pool.free_block_queue)) is tails[1], "it is the first to be used again"


def test_a_longer_tail_is_kept_beside_a_shorter_one() -> None:
    manager = make_manager(10)
    ask(manager, [1, 2])
    assert ask(manager, [1, 2, 3]) == 2
    assert num_cached(manager, [1, 2, 3, 4]) == 3


def test_tails_are_forgotten_before_the_heads_of_their_sequences() -> None:
    manager = make_manager(4)
    ask(manager, [1, 2, 3, 4, 5, 6])
    start(manager, a_request(list(range(20, 28))))  # takes the block that was never used, and another
    assert num_cached(manager, [1, 2, 3, 4, 5, 6]) == 4


def test_a_head_is_hit_only_with_equal_extra_keys() -> None:
    manager = make_manager(40)
    prompt = list(range(7))
    image = MediaSpan("image", 5, 1)
    ask(manager, prompt, cache_salt="a", adapter="french", media=(image,))
    fields = {"cache_salt": "a", "adapter": "french", "media": (image,)}
    assert num_cached(manager, prompt, **fields) == 6
    assert num_cached(manager, prompt, **{**fields, "media": (MediaSpan("other", 5, 1),)}) == 4
    assert num_cached(manager, prompt, **{**fields, "media": (MediaSpan("image", 6, 1),)}) == 4
    assert num_cached(manager, prompt, **{**fields, "media": ()}) == 4
    assert num_cached(manager, prompt, **{**fields, "cache_salt": "b"}) == 0
    assert num_cached(manager, prompt, **{**fields, "adapter": "german"}) == 0


def test_a_state_has_no_head() -> None:
    manager = make_manager(40, kinds=["recurrent", "full"])
    request = a_request(list(range(10)))
    start(manager, request, 8)
    finish(manager, request)
    assert num_cached(manager, list(range(10))) == 8
    assert num_cached(manager, list(range(7))) == 0


def test_a_request_that_needs_every_block_does_without_the_copy() -> None:
    manager = make_manager(3)
    ask(manager, [1, 2, 3, 4, 5, 6])
    request = a_request([1, 2, 3, 4, 5, 50])
    hit = manager.get_computed_blocks(request)
    assert hit.num_tokens == 4  # the two blocks there are hold the hit and the source
    assert manager.can_admit(request, hit)
    assert manager.allocate_slots(request, 2, hit) is not None
    request.num_computed_tokens = 6
    run(manager, request)


def test_a_pending_copy_does_not_count_as_a_request_that_shares() -> None:
    manager = make_manager(30)
    stem = list(range(9))
    requests = [a_request([*stem, 40]), a_request([*stem, 50])]
    for request in requests:
        start(manager, request)
    assert manager.get_num_common_prefix_blocks(requests[0], 2) == [2]
    # Shares the first block, and is about to copy the second.
    third = a_request([*stem[:6], 60])
    manager.allocate_slots(third, 1, manager.get_computed_blocks(third))
    assert manager.get_num_common_prefix_blocks(requests[0], 3) == [1]
    assert len(take(manager)) == 1
    assert manager.get_num_common_prefix_blocks(requests[0], 3) == [1]


def test_a_copy_is_not_found_after_its_step_has_failed() -> None:
    manager = make_manager(1 + 6)
    prompt = [1, 2, 3, 4, 5, 6]
    assert ask(manager, prompt) == 0
    request = a_request([*prompt, 7])
    hit = manager.get_computed_blocks(request)
    assert hit.num_tokens == 6
    assert manager.allocate_slots(request, 1, hit) is not None
    assert len(manager.take_block_copies()) == 1
    manager.start_step(1)
    others = a_request([9] * 16)
    assert start(manager, others) is not None  # and the block to copy from is given to others
    manager.free(request, hit.num_tokens)  # an abort: the step has not run, and it may fail
    manager.free(others)
    assert num_cached(manager, [*prompt, 8]) == 6
    assert manager.fail_steps() == []
    assert manager.get_computed_blocks(a_request([*prompt, 8])).num_tokens == 4
    manager.check()
