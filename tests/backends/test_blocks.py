"""Blocks of a cache that layers of several kinds share, on all backends, by tables made by hand: whatever
lies in a block besides what a request put there, whoever had it before, leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from octavo.backends.backend import Backend
from octavo.errors import UnsupportedError
from octavo.models.layer_cache import LayerCache, cache_of_attention
from octavo.models.spec import ModelSpec
from octavo.ops import AttentionLayer, Linear, Ops, Tensor
from octavo.types.kv import KVCacheConfig, KVCacheGroup, KVCacheSpec
from octavo.weights.weight import Weight
from tests.backends.steps import Request, cache_config, run_steps, whole_prompt_logits
from tests.models.tiny_llama import make_config, make_model, make_weight
from tests.native import NATIVE, make_backend

HIDDEN, VOCAB = 48, 101
NAN_TOKEN = VOCAB - 1  # with it, whatever is computed is no number
BLOCK_SIZE, NUM_BLOCKS, NUM_GROUPS = 16, 42, 3
WINDOWS = (None, 20, 40)  # of the groups
# As (heads, KV heads, head size, window). Groups have 2, 2 and 1 layers, and pages of three sizes.
LAYERS = tuple(
    AttentionLayer(index, *heads, scale=0.3, window=window)
    for index, (heads, window) in enumerate(
        [
            ((4, 2, 32), WINDOWS[0]),
            ((3, 1, 16), WINDOWS[1]),
            ((6, 6, 16), WINDOWS[2]),
            ((4, 2, 32), WINDOWS[0]),
            ((3, 1, 16), WINDOWS[1]),
        ]
    )
)
TOKEN_IDS = np.random.default_rng(5).integers(0, NAN_TOKEN, 100)
NUM_TABLE_BLOCKS = -(-len(TOKEN_IDS) // BLOCK_SIZE)  # of one request in one group
CHUNKS = [23, 1, 1, 40, 16, 1, 18]


class MixedModel:
    """Attention layers of several kinds, one after the other, each added to what it was given."""

    def __init__(self) -> None:
        random = np.random.default_rng(6)

        def weight(rows: int, columns: int) -> Weight:
            return make_weight(random.standard_normal((rows, columns), np.float32) / 4, f"{rows} x {columns}")

        table = random.standard_normal((VOCAB, HIDDEN), np.float32)
        table[NAN_TOKEN] = np.nan
        self.table = make_weight(table, "table")
        self.heads = [(each.num_heads, each.num_kv_heads, each.num_kv_heads) for each in LAYERS]
        self.maps = [
            (
                Linear((weight(sum(heads) * layer.head_size, HIDDEN),)),
                Linear((weight(HIDDEN, heads[0] * layer.head_size),)),
            )
            for layer, heads in zip(LAYERS, self.heads, strict=True)
        ]
        self.head = Linear((weight(VOCAB, HIDDEN),))
        self.weights = (
            self.table,
            *(each.weights[0] for pair in self.maps for each in pair),
            *self.head.weights,
        )

    @property
    def spec(self) -> ModelSpec:
        return make_model(make_config(hidden_size=HIDDEN, vocab_size=VOCAB)).spec

    @property
    def num_layers(self) -> int:
        return len(LAYERS)

    def cache_specs(self) -> tuple[LayerCache, ...]:
        return tuple(map(cache_of_attention, LAYERS))

    def embed(self, ops: Ops[Tensor], token_ids: Tensor) -> Tensor:
        return ops.embedding(token_ids, self.table)

    def layer(self, ops: Ops[Tensor], index: int, x: Tensor, positions: Tensor) -> Tensor:
        inputs, output = self.maps[index]
        q, k, v = ops.split_heads(ops.linear(x, inputs), self.heads[index])
        return ops.linear(ops.attention(q, k, v, LAYERS[index]), output, residual=x)

    def finish(self, ops: Ops[Tensor], x: Tensor) -> Tensor:
        return x

    def compute_logits(self, ops: Ops[Tensor], hidden: Tensor) -> Tensor:
        return ops.linear(hidden, self.head)


@dataclass(frozen=True)
class Fixture:
    """A backend that has loaded the model, and what TOKEN_IDS give on it when nothing else has ever run."""

    backend: Backend
    model: MixedModel
    expected: np.ndarray

    def fresh(self) -> Backend:
        """The backend with a new cache, all zeros."""
        self.backend.allocate_kv_cache(cache_config(self.backend, self.model, BLOCK_SIZE, NUM_BLOCKS))
        return self.backend

    def poisoned(self) -> Backend:
        """With a cache in which no block, whichever group it is given to, holds numbers."""
        backend = self.fresh()
        thirds = np.arange(NUM_BLOCKS, dtype=np.int32).reshape(NUM_GROUPS, -1)
        for turn in range(NUM_GROUPS):
            spoil(backend, np.roll(thirds, turn, axis=0))
        return backend


def spoil(backend: Backend, block_ids: np.ndarray) -> None:
    """Fill blocks [G, B], as a request of all groups that has them, with what are no numbers."""
    token_ids = np.full(block_ids.shape[1] * BLOCK_SIZE, NAN_TOKEN)
    with np.errstate(invalid="ignore"):
        (logits,) = run_steps(backend, [Request(token_ids, block_ids)], [{0: len(token_ids)}], BLOCK_SIZE)
    assert np.isnan(logits).all()


KINDS = [("reference", "f32"), *(("native", kv_type) for kv_type in ("f32", "bf16", "fp8_e4m3"))]


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=NATIVE.marks if kind[0] == "native" else ()) for kind in KINDS],
    ids="-".join,
)
def cached(request: pytest.FixtureRequest) -> Fixture:
    name, kv_type = request.param
    backend, model = make_backend(name, kv_type), MixedModel()
    backend.load_model(model)
    return Fixture(backend, model, whole_prompt_logits(backend, model, TOKEN_IDS))


def scattered_blocks(seed: int) -> np.ndarray:
    """Blocks for TOKEN_IDS [G, B], in no order, no two the same and none of them null."""
    blocks = 1 + np.random.default_rng(seed).permutation(NUM_BLOCKS - 1).astype(np.int32)
    return blocks[: NUM_GROUPS * NUM_TABLE_BLOCKS].reshape(NUM_GROUPS, NUM_TABLE_BLOCKS)


def run(backend: Backend, request: Request, counts: Sequence[int] = CHUNKS) -> np.ndarray:
    """Logits of the request's next tokens, in steps of these many."""
    return run_steps(backend, [request], [{0: count} for count in counts], BLOCK_SIZE)[0]


def num_behind(group: int, num_computed: int) -> int:
    """Blocks of a request in `group` that no token from `num_computed` on sees anything of."""
    window = WINDOWS[group]
    return 0 if window is None else max(0, num_computed - window + 1) // BLOCK_SIZE


# ------------------------------------------------------------ blocks of many owners


def test_groups_run_as_if_each_had_a_cache_of_its_own(cached: Fixture) -> None:
    logits = run(cached.fresh(), Request(TOKEN_IDS, scattered_blocks(0)))
    assert np.array_equal(logits, cached.expected)


def test_what_other_groups_left_in_blocks_leaves_no_trace(cached: Fixture) -> None:
    backend = cached.poisoned()
    for seed in range(3):
        logits = run(backend, Request(TOKEN_IDS, scattered_blocks(seed)))
        assert np.array_equal(logits, cached.expected)


def test_blocks_move_from_group_to_group_beside_a_request_that_keeps_its_own(cached: Fixture) -> None:
    backend, moving = cached.fresh(), scattered_blocks(1)
    others = np.setdiff1d(np.arange(1, NUM_BLOCKS, dtype=np.int32), moving)
    kept = others[: NUM_GROUPS * 6].reshape(NUM_GROUPS, 6)
    bystander = Request(TOKEN_IDS[: 6 * BLOCK_SIZE], kept)
    shown = [run(backend, bystander, [30])]
    for turn, count in enumerate((1, 50, 15)):
        logits = run(backend, Request(TOKEN_IDS, np.roll(moving, turn, axis=0)))
        assert np.array_equal(logits, cached.expected)
        shown.append(run(backend, bystander, [count]))
    assert np.array_equal(np.concatenate(shown), cached.expected[: 6 * BLOCK_SIZE])


@pytest.mark.parametrize("is_null", [True, False], ids=["null", "taken"])
def test_blocks_that_slid_out_of_a_window_are_not_read(cached: Fixture, is_null: bool) -> None:
    backend, request, shown = cached.poisoned(), Request(TOKEN_IDS, scattered_blocks(2)), []
    for count in CHUNKS:
        for group in range(NUM_GROUPS):
            behind = request.block_ids[group, : num_behind(group, request.num_computed)]
            if is_null:
                behind[:] = 0
            elif len(behind):
                spoil(backend, np.broadcast_to(behind, (NUM_GROUPS, len(behind))))
        shown.append(run(backend, request, [count]))
    assert num_behind(1, request.num_computed) > num_behind(2, request.num_computed) > 0
    assert np.array_equal(np.concatenate(shown), cached.expected)


@pytest.mark.parametrize("num_cached", [16, 48, 80])
def test_of_a_cached_prefix_windows_need_only_what_they_see(cached: Fixture, num_cached: int) -> None:
    backend, block_ids = cached.poisoned(), scattered_blocks(3)
    run(backend, Request(TOKEN_IDS, block_ids), [num_cached])
    for group in range(NUM_GROUPS):
        block_ids[group, : num_behind(group, num_cached)] = 0
    logits = run(backend, Request(TOKEN_IDS, block_ids, num_cached), [1, len(TOKEN_IDS) - num_cached - 1])
    assert np.array_equal(logits, cached.expected[num_cached:])


# ------------------------------------------------------------ zeros and copies


def test_zeroed_blocks_are_zero_and_no_others(cached: Fixture) -> None:
    def last_logits(zeroed: Sequence[int]) -> np.ndarray:
        backend, request = cached.fresh(), Request(TOKEN_IDS, scattered_blocks(4))
        run(backend, request, [len(TOKEN_IDS) - 1])
        backend.zero_blocks(np.array(zeroed, np.int32))
        return run(backend, request, [1])[0]

    block_ids = scattered_blocks(4)
    others = np.setdiff1d(np.arange(NUM_BLOCKS), block_ids)
    assert np.array_equal(last_logits(others), cached.expected[-1])
    for group in range(NUM_GROUPS):
        assert not np.array_equal(last_logits(block_ids[group, -2:-1]), cached.expected[-1])


def test_poison_is_gone_once_blocks_are_zeroed(cached: Fixture) -> None:
    """Every page of a block is zeroed, whoever filled it: tokens that nobody wrote are read as zeros."""

    def logits_after_nothing(backend: Backend) -> np.ndarray:
        return run(backend, Request(TOKEN_IDS, scattered_blocks(5), num_computed=90), [10])

    expected = logits_after_nothing(cached.fresh())
    backend = cached.poisoned()
    backend.zero_blocks(np.arange(NUM_BLOCKS, dtype=np.int32))
    assert np.array_equal(logits_after_nothing(backend), expected)


def test_copied_blocks_hold_what_their_sources_held(cached: Fixture) -> None:
    backend, block_ids = cached.poisoned(), scattered_blocks(6)
    run(backend, Request(TOKEN_IDS, block_ids), [90])
    sources = block_ids[:, :6]
    destinations = np.setdiff1d(np.arange(1, NUM_BLOCKS, dtype=np.int32), sources)[: sources.size]
    backend.copy_blocks(sources.ravel(), destinations)
    copies = block_ids.copy()
    copies[:, :6] = destinations.reshape(sources.shape)
    copies[:, 6] = np.setdiff1d(np.arange(1, NUM_BLOCKS), [*sources.ravel(), *destinations])[:NUM_GROUPS]
    for blocks in (copies, block_ids):  # what either writes behind its 90 tokens, the other does not see
        logits = run(backend, Request(TOKEN_IDS, blocks, num_computed=90), [3, 7])
        assert np.array_equal(logits, cached.expected[90:])


def test_one_block_may_be_copied_to_many(cached: Fixture) -> None:
    backend, block_ids = cached.fresh(), scattered_blocks(7)
    run(backend, Request(TOKEN_IDS, block_ids), [16])
    first, others = block_ids[:, 0], np.setdiff1d(np.arange(1, NUM_BLOCKS, dtype=np.int32), block_ids)
    backend.copy_blocks(np.tile(first, 3), others[: 3 * NUM_GROUPS])
    for copies in others[: 3 * NUM_GROUPS].reshape(3, NUM_GROUPS):
        request = Request(TOKEN_IDS, np.column_stack([copies, block_ids[:, 1:]]), num_computed=16)
        assert np.array_equal(run(backend, request, [84]), cached.expected[16:])


@pytest.mark.parametrize("block_ids", [[NUM_BLOCKS], [-1], [2, 100]])
def test_only_blocks_of_the_cache_are_zeroed_and_copied(cached: Fixture, block_ids: list[int]) -> None:
    backend, strangers, others = cached.fresh(), np.array(block_ids, np.int32), np.array([3, 4], np.int32)
    complaint = rf"{{}} holds {block_ids[-1]}; blocks are 0 up to {NUM_BLOCKS - 1}"
    with pytest.raises(ValueError, match=complaint.format("block_ids")):
        backend.zero_blocks(strangers)
    with pytest.raises(ValueError, match=complaint.format("sources")):
        backend.copy_blocks(strangers, others[: len(strangers)])
    with pytest.raises(ValueError, match=complaint.format("destinations")):
        backend.copy_blocks(others[: len(strangers)], strangers)


@pytest.mark.parametrize(
    ("sources", "destinations", "complaint"),
    [
        ([5], [5], "destinations holds 5, which sources holds too"),
        ([4, 6], [6, 7], "destinations holds 6, which sources holds too"),
        ([4, 6], [7, 4], "destinations holds 4, which sources holds too"),
        ([4, 5, 6], [7, 8, 7], "destinations holds 7 twice"),
        ([4, 5], [7], "destinations has 1 entries; it must have 2"),
    ],
)
def test_copies_whose_order_would_matter_are_refused(
    cached: Fixture, sources: list[int], destinations: list[int], complaint: str
) -> None:
    backend = cached.fresh()
    with pytest.raises(ValueError, match=complaint):
        backend.copy_blocks(np.array(sources, np.int32), np.array(destinations, np.int32))


# ------------------------------------------------------------ what no backend keeps


class OtherSpec(KVCacheSpec):
    """Of a kind that no backend knows."""

    @property
    def page_bytes(self) -> int:
        return 2**60  # nobody tries to allocate it

    def num_blocks_for(self, num_tokens: int, max_chunk: int) -> int:
        return 1


def test_layers_that_keep_something_else_are_refused_by_name(cached: Fixture) -> None:
    config = cache_config(cached.backend, cached.model, BLOCK_SIZE, NUM_BLOCKS)
    config = KVCacheConfig(NUM_BLOCKS, (*config.groups, KVCacheGroup(OtherSpec(BLOCK_SIZE), (5, 7))))
    with pytest.raises(UnsupportedError, match=r"layers 5, 7 need a KV cache of kind OtherSpec"):
        cached.backend.allocate_kv_cache(config)
