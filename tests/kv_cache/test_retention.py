"""What stays cached of what has slid out of sight, by `prefix_cache_retention_interval`."""

import pytest

from tests.kv_cache.driver import a_request, finish, generate, ids_of, make_manager, num_cached, start

BLOCK = 4
PROMPT = list(range(30))
ANSWER = 30  # tokens, far more than a window


def lengths_found(interval: int | None, kinds: list[str], reach: int = 6) -> list[int]:
    """Which beginnings of a prompt and its answer, in blocks, others find whole once the request is gone."""
    manager = make_manager(200, BLOCK, kinds=kinds, reach=reach, retention_interval=interval)
    request = a_request(PROMPT)
    start(manager, request)
    for _ in range(ANSWER):
        generate(manager, request)
    tokens = list(request.token_ids)
    finish(manager, request)
    manager.check()
    found = []
    for num_blocks in range(1, len(tokens) // BLOCK + 1):
        length = num_blocks * BLOCK
        if num_cached(manager, [*tokens[:length], 99]) == length:
            found.append(num_blocks)
    return found


def test_by_default_all_blocks_stay_cached() -> None:
    assert lengths_found(None, ["window", "full"]) == list(range(1, 16))


@pytest.mark.parametrize("kinds", [["window"], ["window", "full"], ["chunk", "full"]])
def test_with_0_only_windows_at_the_ends_of_prompt_and_sequence_stay_cached(kinds: list[str]) -> None:
    # The prompt again goes on after 28 of its 30 tokens; a chunk of 6 that begins at 24 is seen from there.
    found = lengths_found(0, kinds)
    assert 7 in found
    assert 15 in found
    assert 2 not in found
    assert 11 not in found


def test_with_an_interval_windows_at_each_multiple_stay_cached_too() -> None:
    found = lengths_found(20, ["window", "full"])
    assert {5, 7, 10, 15} <= set(found)  # 20, 28, 40 and 60 tokens
    assert not {2, 3, 12, 13} & set(found)


def test_an_interval_that_is_no_multiple_of_blocks_counts_from_the_block_it_ends_in() -> None:
    assert 5 in lengths_found(22, ["window", "full"])


def test_the_prompt_again_costs_its_last_block_only_with_0() -> None:
    manager = make_manager(200, BLOCK, kinds=["window", "full"], retention_interval=0)
    request = a_request(PROMPT)
    start(manager, request)
    for _ in range(ANSWER):
        generate(manager, request)
    finish(manager, request)
    assert start(manager, a_request(PROMPT))[0] == 28


def test_forgotten_blocks_are_reused_first() -> None:
    manager = make_manager(200, BLOCK, kinds=["window", "full"], retention_interval=0)
    request = a_request(PROMPT)
    start(manager, request, 20)
    first = ids_of(manager, request)[0]
    request.num_computed_tokens = 20
    added = manager.allocate_slots(request, 10)
    assert first in [block_id for group in added for block_id in group]
    manager.check()


def test_blocks_that_other_requests_have_stay_cached() -> None:
    manager = make_manager(200, BLOCK, kinds=["window", "full"], retention_interval=0)
    one, other = a_request(PROMPT), a_request([*PROMPT[:12], 77, 78])
    start(manager, one, 12)
    start(manager, other, 1)
    held = ids_of(manager, other)[2]
    one.num_computed_tokens = 12
    manager.allocate_slots(one, 18)
    assert held, "the other sees it still"
    assert manager.pool.blocks[held].prefix is not None
    manager.check()
