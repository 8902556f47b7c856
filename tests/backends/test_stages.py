"""A model that runs in two stages, each with a program and a KV cache of its own, gives the bits of the whole
model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from octavo.backends.native.kv_cache import KVCaches
from octavo.backends.native.library import make_device
from octavo.backends.native.program import compile_program
from octavo.backends.reference.attention import KVCache
from octavo.backends.reference.ops import ReferenceOps
from octavo.backends.reference.parameters import Parameters
from octavo.models.load import load_model, spec_from_config
from octavo.models.model import Model, embed_inputs, forward, run_layers
from octavo.ops import Ops, Tensor
from octavo.types.batch import Batch
from octavo.types.kv import KVCacheConfig
from tests.backends.steps import Request, cache_config, make_batch
from tests.models.tiny_llama import ArraySource, make_config, make_model
from tests.native import BACKENDS, make_backend
from tests.tiny_gemma3 import CONFIG, make_arrays

BLOCK_SIZE, NUM_BLOCKS = 16, 10
CHUNKS = (40, 1, 30)  # of tokens; more than a window of the tiny Gemma 3
TOKEN_IDS = np.random.default_rng(3).integers(0, 101, sum(CHUNKS)).astype(np.int32)

MODELS: dict[str, Callable[[], Model]] = {
    "llama": lambda: make_model(make_config(num_hidden_layers=4, head_dim=16, attention_bias=True)),
    "gemma3": lambda: load_model(ArraySource(make_arrays(CONFIG)), spec_from_config(CONFIG, "tiny")),
}

Run = Callable[..., np.ndarray]  # (batch, token_ids, **inputs) → hidden states


def run_first(model: Model, split: int, ops: Ops[Tensor], token_ids: Tensor, positions: Tensor) -> Tensor:
    """The embedding and the layers before `split`."""
    return run_layers(model, ops, embed_inputs(model, ops, token_ids), positions, range(split))


def run_last(
    model: Model, split: int, ops: Ops[Tensor], token_ids: Tensor, positions: Tensor, x: Tensor
) -> Tensor:
    """The layers from `split` on, and the final norm."""
    return model.finish(ops, run_layers(model, ops, x, positions, range(split, model.num_layers)))


def compile_stage(
    backend: str,
    model: Model,
    config: KVCacheConfig,
    function: Callable[..., Any],
    inputs: Mapping[str, int] | None = None,
) -> Run:
    """`function(ops, token_ids, positions, **inputs)` on a backend, with a new KV cache."""
    if backend == "reference":
        parameters, cache = Parameters(model.weights), KVCache(config)

        def compute(batch: Batch, token_ids: np.ndarray, **values: np.ndarray) -> np.ndarray:
            ops = ReferenceOps(parameters, cache, batch.attention)
            return function(ops, token_ids, batch.positions, **values)

        return compute
    program = compile_program(make_device(2), function, inputs, KVCaches(config, "f32"))

    def run(batch: Batch, token_ids: np.ndarray, **values: np.ndarray) -> np.ndarray:
        (out,) = program.run(
            len(token_ids),
            token_ids=token_ids,
            positions=batch.positions,
            attention=batch.attention,
            **values,
        )
        return out

    return run


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("split", [0, 1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_two_stages_give_the_bits_of_the_whole_model(name: str, split: int, backend: str) -> None:
    model = MODELS[name]()
    config = cache_config(make_backend(backend, "f32"), model, BLOCK_SIZE, NUM_BLOCKS + 1)
    compiled = partial(compile_stage, backend, model, config)
    whole = compiled(partial(forward, model))
    first = compiled(partial(run_first, model, split))
    last = compiled(partial(run_last, model, split), {"x": model.spec.hidden_size})

    block_ids = np.arange(1, NUM_BLOCKS + 1, dtype=np.int32).reshape(len(config.groups), -1)
    request = Request(TOKEN_IDS, block_ids)
    for count in CHUNKS:
        batch = make_batch([request], {0: count}, BLOCK_SIZE)
        token_ids = TOKEN_IDS[request.num_computed :][:count]
        staged = last(batch, token_ids, x=first(batch, token_ids))
        assert np.array_equal(staged, whole(batch, token_ids))
        request.num_computed += count
