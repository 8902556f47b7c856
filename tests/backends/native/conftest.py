"""What tests of native kernels stand on: devices, and small programs compiled from functions of `Ops`.

    def function(ops, token_ids, positions, x):        # any function in the vocabulary of octavo/ops.py
        return ops.linear(x, layer)

    program = compile_program(device, function, {"x": 64})      # name → columns of each float32 input
    (y,) = program.run(num_tokens, x=array)                     # array float32 [num_tokens, 64], C-contiguous

    caches = KVCaches(kv_config, "bf16")                        # or "f32", "fp8_e4m3"; a KVCacheConfig
    program = compile_program(device, function, {"qkv": 192}, caches)
    (y,) = program.run(num_tokens, positions=positions, attention=batch.attention, qkv=array)

`compile_program` is in octavo.backends.native.program, `KVCaches` in octavo.backends.native.kv_cache.
`token_ids` (int32) and `positions` (int64) are given to `run` where the function uses them, `attention` where
it attends: one CommonAttentionMetadata for each KV cache group. Outputs are float32 views [num_tokens,
columns] of memory that is not used again while they are held.
"""

from __future__ import annotations

from typing import Any

import pytest

from octavo.backends.native.library import load_library
from tests.native import instruction_sets

THREADS = (1, 2, 3)


@pytest.fixture(scope="session", params=instruction_sets())
def devices(request: pytest.FixtureRequest) -> dict[int, Any]:
    """Devices of one instruction set by their number of threads: results must be == between them."""
    if request.param is None:
        pytest.skip("the native extension is not built")
    return {count: load_library().Device(request.param, count) for count in THREADS}


@pytest.fixture
def device(devices: dict[int, Any]) -> Any:
    """A device of two threads, in turn of every instruction set that this machine can run."""
    return devices[2]
