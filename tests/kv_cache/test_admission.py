"""Who is let in: nobody on what others hold or were promised, and whoever fits the cache when alone."""

from __future__ import annotations

import random

import pytest

from tests.kv_cache.driver import a_request, finish, generate, make_manager, proceed, start
from tests.seeds import every_seed


@pytest.mark.parametrize(("length", "fits"), [(11, True), (12, False)], ids=["fits", "too long"])
def test_admission_needs_blocks_for_all_tokens_and_one_more(length: int, fits: bool) -> None:
    manager = make_manager(5)
    start(manager, a_request([1]))
    request = a_request(list(range(100, 100 + length)))
    assert manager.can_admit(request, manager.get_computed_blocks(request)) is fits


def test_an_empty_cache_admits_every_request_that_fits_it() -> None:
    manager = make_manager(5)
    request = a_request(list(range(16)))
    assert manager.max_num_tokens == 16
    assert manager.can_admit(request, manager.get_computed_blocks(request))


def test_blocks_promised_to_an_unfinished_prompt_admit_no_other_request() -> None:
    manager = make_manager(10)
    long, short = a_request(list(range(28))), a_request(list(range(50, 58)))
    start(manager, long, 4)  # holds one block, is promised six: two are left
    assert not manager.can_admit(short, manager.get_computed_blocks(short))
    manager.free(long)
    assert manager.can_admit(short, manager.get_computed_blocks(short))


def test_a_promise_is_kept_as_the_prompt_proceeds() -> None:
    manager = make_manager(10)
    long = a_request(list(range(28)))
    start(manager, long, 4)
    while long.num_computed_tokens < 28:
        assert manager._num_promised == 7 - long.num_computed_tokens // 4
        assert manager.allocate_slots(long, 4) is not None
        long.num_computed_tokens += 4
    assert manager._num_promised == 0
    manager.check()
    small, large = a_request([1, 2, 3, 4, 5]), a_request(list(range(60, 68)))
    assert manager.can_admit(small, manager.get_computed_blocks(small))
    assert not manager.can_admit(large, manager.get_computed_blocks(large))


def test_blocks_shared_with_a_running_request_cost_nothing() -> None:
    manager = make_manager(5)
    start(manager, a_request(list(range(12))))
    alike, unlike = a_request([*range(12), 50]), a_request([*range(50, 62), 50])
    assert manager.can_admit(alike, manager.get_computed_blocks(alike))
    assert not manager.can_admit(unlike, manager.get_computed_blocks(unlike))


def test_spare_blocks_are_left_free() -> None:
    manager = make_manager(10)
    start(manager, a_request([1]))
    request = a_request(list(range(10, 21)))  # three blocks of eight
    hit = manager.get_computed_blocks(request)
    assert [manager.can_admit(request, hit, num_spare) for num_spare in (0, 5, 6)] == [True, True, False]


def test_a_window_is_admitted_on_the_most_blocks_it_has_at_once() -> None:
    # 6 tokens seen, of which one is computed, and 3 more lie in 3 blocks at most.
    manager = make_manager(1 + 3 + 2, kinds=["window"], reach=6, max_chunk=4)
    long, other = a_request(list(range(400))), a_request(list(range(500, 900)))
    assert manager.max_num_tokens > 1000
    assert manager.can_admit(long, manager.get_computed_blocks(long))
    start(manager, long, 4)
    assert not manager.can_admit(other, manager.get_computed_blocks(other))
    short = a_request(list(range(500, 507)))
    assert manager.can_admit(short, manager.get_computed_blocks(short))


def test_blocks_that_a_window_gives_back_stay_promised_until_its_prompt_is_done() -> None:
    manager = make_manager(1 + 2 * 3, kinds=["window"], reach=6, max_chunk=4)
    one, two, three = (a_request(list(range(first, first + 40))) for first in (0, 100, 200))
    for request in (one, two):
        assert manager.can_admit(request, manager.get_computed_blocks(request))
        start(manager, request, 4)
    assert not manager.can_admit(three, manager.get_computed_blocks(three))
    while one.num_computed_tokens < 40:
        for request in (one, two):
            assert proceed(manager, request, 4), "two long prompts evict each other"
    assert manager._num_promised == 0
    finish(manager, one)
    assert manager.can_admit(three, manager.get_computed_blocks(three))


def test_nothing_is_promised_to_a_window_whose_prompt_is_done() -> None:
    # A step of 8 tokens needs up to 4 blocks at once, and one of a single token 3.
    manager = make_manager(1 + 4 + 3, kinds=["window"], reach=6, max_chunk=8)
    request = a_request(list(range(16)))
    start(manager, request, 8)
    proceed(manager, request, 8)
    for _ in range(12):
        assert generate(manager, request)
    newcomer = a_request(list(range(50, 90)))
    assert manager.usage == pytest.approx(3 / 7)
    assert manager.can_admit(newcomer, manager.get_computed_blocks(newcomer))


def test_windows_do_not_count_on_shared_blocks_that_they_will_give_back() -> None:
    manager = make_manager(1 + 6, kinds=["window"], reach=9, max_chunk=4)
    stem = list(range(12))
    one = a_request([*stem, *range(20, 60)])
    start(manager, one, 4)
    proceed(manager, one, 4)
    proceed(manager, one, 4)
    two = a_request([*stem, *range(70, 110)])
    hit = manager.get_computed_blocks(two)
    assert hit.num_tokens == 12
    # Both need two blocks shared now, but later, when their windows have left those, four each.
    assert not manager.can_admit(two, hit)


@every_seed(200)
def test_a_request_that_fits_the_cache_runs_alone_to_its_last_token(seed: int) -> None:
    """In any chunks, over any remains of others."""
    rng = random.Random(seed)
    kinds = rng.choice(
        [
            ["full"],
            ["window"],
            ["window", "full"],
            ["chunk", "full"],
            ["recurrent", "full"],
            ["full", "cross"],
        ]
    )
    block_size, max_chunk = rng.choice([1, 2, 3, 4]), rng.randint(1, 20)
    layout = {"kinds": kinds, "reach": rng.randint(1, 12), "max_chunk": max_chunk}
    manager = make_manager(rng.randint(20, 40), block_size, **layout)
    longest = min(manager.max_num_tokens, 60)
    for _ in range(4):
        tokens = [rng.choice([1, 2]) for _ in range(longest)]
        request = a_request(tokens[: rng.randint(1, longest)], num_encoder_tokens=rng.choice([0, 7]))
        hit = manager.get_computed_blocks(request)
        assert manager.can_admit(request, hit)
        assert start(manager, request, rng.randint(1, min(request.num_tokens - hit.num_tokens, max_chunk)))
        while request.num_computed_tokens < request.num_tokens:
            left = request.num_tokens - request.num_computed_tokens
            assert proceed(manager, request, rng.randint(1, min(left, max_chunk)))
        for token_id in tokens[request.num_tokens :]:
            assert generate(manager, request, token_id)
        finish(manager, request)
    assert manager.usage == 0
