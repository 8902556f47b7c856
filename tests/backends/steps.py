"""Drives a backend through steps by hand, without a scheduler: any requests, any chunks, any blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.backends.backend import Backend
from octavo.engine.cache_layout import cache_spec
from octavo.models.model import Model
from octavo.types.batch import Batch, CommonAttentionMetadata
from octavo.types.kv import KVCacheConfig, KVCacheGroup, KVCacheSpec


@dataclass
class Request:
    """Tokens to run, the blocks they lie in, and how many of them have been computed."""

    token_ids: np.ndarray
    block_ids: np.ndarray  # [B], or [G, B] where the cache has several groups
    num_computed: int = 0


def cache_config(backend: Backend, model: Model, block_size: int, num_blocks: int) -> KVCacheConfig:
    """A group for each kind of layers, in order of their first, as `backend` keeps K and V."""
    layers: dict[KVCacheSpec, list[int]] = {}
    for index, kept in enumerate(model.cache_specs()):
        if (spec := cache_spec(kept, block_size, backend)) is not None:
            layers.setdefault(spec, []).append(index)
    groups = (KVCacheGroup(spec, tuple(indices)) for spec, indices in layers.items())
    return KVCacheConfig(num_blocks, tuple(groups))


def make_batch(requests: Sequence[Request], counts: Mapping[int, int], block_size: int) -> Batch:
    """The step that runs the next `counts[i]` tokens of `requests[i]`, and wants logits of all of them."""
    chosen = [requests[index] for index in counts]
    positions = [
        request.num_computed + np.arange(counts[index]) for index, request in _items(requests, counts)
    ]
    tables = [np.atleast_2d(request.block_ids) for request in chosen]
    num_tokens = np.array(list(counts.values()))
    attention = []
    for group in range(len(tables[0])):
        slots = [
            table[group, p // block_size].astype(np.int64) * block_size + p % block_size
            for table, p in zip(tables, positions, strict=True)
        ]
        block_table = np.zeros((len(chosen), max(table.shape[1] for table in tables)), np.int32)
        for row, table in zip(block_table, tables, strict=True):
            row[: table.shape[1]] = table[group]
        metadata = CommonAttentionMetadata(
            query_start_loc=np.concatenate([[0], np.cumsum(num_tokens)]).astype(np.int32),
            seq_lens=np.array([p[-1] + 1 for p in positions], np.int32),
            block_table=block_table,
            slot_mapping=np.concatenate(slots),
            num_common_prefix_blocks=0,
        )
        attention.append(metadata)
    return Batch(
        req_ids=[str(index) for index in counts],
        rows=np.array(list(counts), np.int64),
        token_rows=np.repeat(np.array(list(counts), np.int64), num_tokens),
        positions=np.concatenate(positions),
        sampled_index=np.arange(len(chosen)),
        logits_start_loc=np.concatenate([[0], np.cumsum(num_tokens)]),
        logits_indices=np.arange(num_tokens.sum()),
        logits_rows=np.repeat(np.array(list(counts), np.int64), num_tokens),
        logits_positions=np.concatenate(positions) + 1,
        draft_token_ids={},
        attention=tuple(attention),
    )


def run_steps(
    backend: Backend, requests: Sequence[Request], steps: Sequence[Mapping[int, int]], block_size: int
) -> list[np.ndarray]:
    """Logits of every token that the steps run, [tokens, vocab] for each request. Advances the requests."""
    logits: list[list[np.ndarray]] = [[] for _ in requests]
    backend.allocate_rows(len(requests), max(len(request.token_ids) for request in requests))
    for row, request in enumerate(requests):
        backend.write_tokens(row, 0, request.token_ids.tolist())
    for counts in steps:
        batch = make_batch(requests, counts, block_size)
        rows = backend.compute_logits(backend.forward(batch), batch.logits_indices)
        for position, index in enumerate(counts):
            start, stop = batch.logits_start_loc[position : position + 2]
            logits[index].append(rows[start:stop])
            requests[index].num_computed += counts[index]
    return [np.concatenate(parts) for parts in logits]


def whole_prompt_logits(backend: Backend, model: Model, token_ids: np.ndarray) -> np.ndarray:
    """Logits of one request alone, in one step, on a fresh cache of `backend`, which has loaded `model`."""
    block_size = 16
    num_blocks = -(-len(token_ids) // block_size)
    num_groups = len(cache_config(backend, model, block_size, 1).groups)
    backend.allocate_kv_cache(cache_config(backend, model, block_size, 1 + num_groups * num_blocks))
    block_ids = np.arange(1, 1 + num_groups * num_blocks, dtype=np.int32).reshape(num_groups, -1)
    request = Request(token_ids, block_ids)
    return run_steps(backend, [request], [{0: len(token_ids)}], block_size)[0]


def _items(requests: Sequence[Request], counts: Mapping[int, int]) -> list[tuple[int, Request]]:
    return [(index, requests[index]) for index in counts]
