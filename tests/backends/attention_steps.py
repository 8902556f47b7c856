"""Tokens to attend over, what they exactly get, and steps that run them by hand: any chunks, any blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.ops import AttentionLayer
from octavo.types.batch import CommonAttentionMetadata


@dataclass
class Tokens:
    """A request's q [n, num_heads, head_size], k and v [n, num_kv_heads, head_size]; how far it has run."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    block_ids: np.ndarray
    num_computed: int = 0

    def __len__(self) -> int:
        return len(self.q)


def random_tokens(layer: AttentionLayer, num_tokens: int, seed: int, block_ids: np.ndarray) -> Tokens:
    """Normally distributed numbers."""
    random = np.random.default_rng(seed)
    q, k, v = (
        random.standard_normal((num_tokens, heads, layer.head_size), np.float32)
        for heads in (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
    )
    return Tokens(q, k, v, block_ids)


def exact_attention(
    tokens: Tokens,
    layer: AttentionLayer,
    sinks: np.ndarray | None = None,
    stored: Callable[[np.ndarray], np.ndarray] = lambda numbers: numbers,
) -> np.ndarray:
    """What every token gets, [n, num_heads, head_size] float64. `stored`: what a cache makes of k and v."""
    q = tokens.q.astype(np.float64)
    heads = np.arange(layer.num_heads) // (layer.num_heads // layer.num_kv_heads)
    k, v = stored(tokens.k)[:, heads].astype(np.float64), stored(tokens.v)[:, heads].astype(np.float64)
    scores = np.einsum("ihd,jhd->hij", q, k) * layer.scale
    if layer.soft_cap is not None:
        scores = layer.soft_cap * np.tanh(scores / layer.soft_cap)
    distance = np.subtract.outer(np.arange(len(q)), np.arange(len(q)))
    seen = np.ones_like(distance, bool) if not layer.causal else distance >= 0
    if layer.window is not None:
        seen &= distance < layer.window
    weights = np.where(seen, np.exp(scores), 0)
    total = weights.sum(axis=-1)
    if sinks is not None:
        total += np.exp(sinks.astype(np.float64))[:, None]
    return np.einsum("hij,jhd->ihd", weights / total[..., None], v)


def make_metadata(
    requests: Sequence[Tokens], counts: Mapping[int, int], block_size: int
) -> CommonAttentionMetadata:
    """The step that runs the next `counts[i]` tokens of `requests[i]`."""
    chosen = [(requests[index], count) for index, count in counts.items()]
    positions = [request.num_computed + np.arange(count) for request, count in chosen]
    table = np.zeros((len(chosen), max(len(request.block_ids) for request, _ in chosen)), np.int32)
    for row, (request, _) in zip(table, chosen, strict=True):
        row[: len(request.block_ids)] = request.block_ids
    slots = [
        request.block_ids[p // block_size].astype(np.int64) * block_size + p % block_size
        for (request, _), p in zip(chosen, positions, strict=True)
    ]
    return CommonAttentionMetadata(
        query_start_loc=np.concatenate([[0], np.cumsum(list(counts.values()))]).astype(np.int32),
        seq_lens=np.array([p[-1] + 1 for p in positions], np.int32),
        block_table=table,
        slot_mapping=np.concatenate(slots),
        num_common_prefix_blocks=0,
    )


def positions_of(metadata: CommonAttentionMetadata) -> np.ndarray:
    """The position of each token in its request: [T] int64."""
    ends, counts = metadata.seq_lens, np.diff(metadata.query_start_loc)
    return np.concatenate(
        [np.arange(end - count, end, dtype=np.int64) for end, count in zip(ends, counts, strict=True)]
    )


Attend = Callable[[np.ndarray, np.ndarray, np.ndarray, CommonAttentionMetadata], np.ndarray]


def run_steps(
    attend: Attend, requests: Sequence[Tokens], steps: Sequence[Mapping[int, int]], block_size: int
) -> list[np.ndarray]:
    """What `attend` gives each request's tokens, [n, num_heads, head_size]. Advances the requests."""
    outputs: list[list[np.ndarray]] = [[] for _ in requests]
    for counts in steps:
        q, k, v = (
            np.concatenate(
                [
                    getattr(requests[index], name)[requests[index].num_computed :][:count]
                    for index, count in counts.items()
                ]
            )
            for name in ("q", "k", "v")
        )
        out = attend(q, k, v, make_metadata(requests, counts, block_size)).reshape(q.shape)
        parts = np.split(out, np.cumsum(list(counts.values()))[:-1])
        for (index, count), part in zip(counts.items(), parts, strict=True):
            outputs[index].append(part)
            requests[index].num_computed += count
    return [np.concatenate(parts) for parts in outputs]


def random_steps(lengths: Sequence[int], largest: int, seed: int) -> list[dict[int, int]]:
    """Steps that run requests of these lengths to their ends, up to `largest` tokens of each at a time; now
    and then a request is left out.
    """
    random = np.random.default_rng(seed)
    left = dict(enumerate(lengths))
    steps = []
    while left:
        chosen = [index for index in left if random.random() < 0.8] or list(left)
        counts = {index: min(int(random.integers(1, largest + 1)), left[index]) for index in chosen}
        steps.append(counts)
        for index, count in counts.items():
            left[index] -= count
        left = {index: rest for index, rest in left.items() if rest}
    return steps
