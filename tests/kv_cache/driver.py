"""Requests that go through a `KVCacheManager` as a scheduler would take them."""

from __future__ import annotations

import itertools

from octavo.kv_cache.block import KVCacheBlock
from octavo.kv_cache.kv_cache_manager import KVCacheManager
from octavo.scheduler.request import Request
from octavo.types.observer import NO_OBSERVER, Observer
from tests.fakes import make_kv_config, make_request

_names = (f"request {number}" for number in itertools.count())


def make_manager(
    num_blocks: int,
    block_size: int = 4,
    *,
    caching: bool = True,
    observer: Observer = NO_OBSERVER,
    retention_interval: int | None = None,
    **layout: object,
) -> KVCacheManager:
    """A manager of a cache made by `make_kv_config`."""
    config = make_kv_config(num_blocks, block_size, **layout)
    return KVCacheManager(config, caching, observer, retention_interval)


def a_request(prompt: list[int], **fields: object) -> Request:
    """A request that nobody has seen yet."""
    return Request(make_request(next(_names), prompt, **fields), max_model_len=10_000)


def start(
    manager: KVCacheManager, request: Request, num_new_tokens: int | None = None
) -> tuple[int, list[int]] | None:
    """Admit `request` and run it as far as said (default: all). Returns (tokens of its hit, block ids of the
    first group).
    """
    hit = manager.get_computed_blocks(request)
    count = request.num_tokens - hit.num_tokens if num_new_tokens is None else num_new_tokens
    block_ids = manager.allocate_slots(request, count, hit)
    if block_ids is None:
        return None
    request.num_computed_tokens = hit.num_tokens + count
    run(manager, request)
    return hit.num_tokens, block_ids[0]


def proceed(manager: KVCacheManager, request: Request, count: int) -> bool:
    """Run `count` tokens more. Returns whether there were blocks for them."""
    if manager.allocate_slots(request, count) is None:
        return False
    request.num_computed_tokens += count
    run(manager, request)
    return True


def generate(manager: KVCacheManager, request: Request, token_id: int = 7) -> bool:
    """Append one token and run it. Returns whether there was a block for it."""
    request.token_ids.append(token_id)
    return proceed(manager, request, 1)


def run(manager: KVCacheManager, request: Request) -> None:
    """A step is planned, run and over."""
    manager.check()
    manager.take_blocks_to_zero()
    manager.take_block_copies()
    manager.start_step(0)
    manager.check()
    assert manager.finish_step(0, lambda request_id: False) == []
    manager.cache_blocks(request, request.num_computed_tokens)
    manager.check()


def finish(manager: KVCacheManager, request: Request) -> None:
    """The request has ended well."""
    manager.free(request, request.num_computed_tokens)
    manager.check()


def ask(manager: KVCacheManager, prompt: list[int], **fields: object) -> int:
    """Run a request from start to end; the tokens of its hit."""
    request = a_request(prompt, **fields)
    started = start(manager, request)
    assert started is not None
    finish(manager, request)
    return started[0]


def num_cached(manager: KVCacheManager, prompt: list[int], **fields: object) -> int:
    """Tokens of `prompt` that would be found now."""
    return manager.get_computed_blocks(a_request(prompt, **fields)).num_tokens


def table_of(manager: KVCacheManager, request: Request, group_id: int = 0) -> list[KVCacheBlock]:
    """The request's table in a group."""
    return manager._blocks_of[request.request_id].tables[group_id]


def ids_of(manager: KVCacheManager, request: Request, group_id: int = 0) -> list[int]:
    """The ids of the request's blocks in a group, 0 where it has none."""
    return [block.block_id for block in table_of(manager, request, group_id)]
