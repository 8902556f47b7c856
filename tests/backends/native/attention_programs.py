"""One attention layer as a native program, on a cache of its own, for tests that run it step by step."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.backends.native.kv_cache import KVCaches, KVType, head_bytes
from octavo.backends.native.program import compile_program
from octavo.ops import AttentionLayer, Ops, Rope
from octavo.types.batch import CommonAttentionMetadata
from octavo.types.kv import FullAttentionSpec, KVCacheConfig, KVCacheGroup
from tests.backends.attention_steps import Attend, positions_of

KV_TYPES: tuple[KVType, ...] = ("f32", "bf16", "fp8_e4m3")
NUM_BLOCKS = 80


def make_caches(
    layer: AttentionLayer, kv_type: KVType, block_size: int = 16, num_blocks: int = NUM_BLOCKS
) -> KVCaches:
    """A cache of one layer."""
    spec = FullAttentionSpec(
        block_size, layer.num_kv_heads, layer.head_size, head_bytes(kv_type, layer.head_size)
    )
    return KVCaches(KVCacheConfig(num_blocks, (KVCacheGroup(spec, (layer.index,)),)), kv_type)


def attend_with(device: Any, layer: AttentionLayer, caches: KVCaches, rope: Rope | None = None) -> Attend:
    """A program of one layer on `caches`; with `rope` it turns q and k."""
    heads = (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)

    def function(ops: Ops, token_ids: Any, positions: Any, qkv: Any) -> Any:
        q, k, v = ops.split_heads(qkv, heads)
        if rope is not None:
            q, k = ops.rope(q, positions, rope), ops.rope(k, positions, rope)
        return ops.attention(q, k, v, layer)

    program = compile_program(device, function, {"qkv": sum(heads) * layer.head_size}, caches)

    def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, metadata: CommonAttentionMetadata) -> np.ndarray:
        qkv = np.concatenate([q, k, v], axis=1).reshape(len(q), -1)
        (out,) = program.run(len(q), positions=positions_of(metadata), attention=[metadata], qkv=qkv)
        return out.copy()

    return attend


def make_attend(
    device: Any, layer: AttentionLayer, kv_type: KVType, block_size: int = 16, rope: Rope | None = None
) -> Attend:
    """A program of one layer, on a cache of its own; with `rope` it turns q and k."""
    return attend_with(device, layer, make_caches(layer, kv_type, block_size), rope)
