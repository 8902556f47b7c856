from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NoReturn

import numpy as np
import pytest

from octavo.backends.reference.backend import ReferenceBackend
from octavo.errors import CapacityError
from octavo.models.model import Model
from octavo.sampling.sampler import Sampler
from octavo.types.kv import FullAttentionSpec, KVCacheConfig, KVCacheGroup
from octavo.types.sampling import SamplingMetadata
from octavo.weights.weight import Weight
from tests.backends.steps import Request, make_batch, whole_prompt_logits
from tests.models.tiny_llama import make_config, make_model


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model(make_config())


@pytest.fixture
def backend(model: Model) -> ReferenceBackend:
    backend = ReferenceBackend(Sampler(None))
    backend.load_model(model)
    return backend


def test_a_cache_that_does_not_fit_is_refused_with_its_size(backend: ReferenceBackend) -> None:
    config = KVCacheConfig(2**40, (KVCacheGroup(FullAttentionSpec(16, 8, 128, 1024), (0, 1)),))
    with pytest.raises(CapacityError, match=f"{config.total_bytes / 2**20:.0f} MiB"):
        backend.allocate_kv_cache(config)


def test_weights_that_do_not_fit_are_refused_with_their_size(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(weights: Iterable[Weight]) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr("octavo.backends.reference.backend.Parameters", allocate)
    mebibytes = 4 * sum(math.prod(weight.shape) for weight in model.weights) / 2**20
    with pytest.raises(CapacityError, match=rf"take {mebibytes:.0f} MiB as float32.*a smaller model$"):
        ReferenceBackend(Sampler(None)).load_model(model)


def test_sampling_goes_through_the_sampler(backend: ReferenceBackend, model: Model) -> None:
    logits = whole_prompt_logits(backend, model, np.arange(3))
    likeliest = logits.argmax(axis=1)
    greedy = SamplingMetadata(
        temperature=np.zeros(3, np.float32),
        top_k=np.zeros(3, np.int32),
        top_p=np.ones(3, np.float32),
        min_p=np.zeros(3, np.float32),
        seeds=np.zeros(3, np.uint64),
        positions=np.arange(3),
        num_logprobs=np.full(3, -1, np.int32),
    )
    backend.allocate_rows(num_rows=1, max_model_len=4)
    batch = make_batch([Request(np.arange(3), np.ones(1, np.int32))], {0: 3}, block_size=16)
    sampled = backend.sample(logits, batch, greedy).result()
    assert np.array_equal(sampled.sampled_token_ids, likeliest)


def test_logprobs_of_given_tokens_are_those_of_the_softmax(backend: ReferenceBackend, model: Model) -> None:
    logits = whole_prompt_logits(backend, model, np.arange(3))
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True))
    found = backend.gather_logprobs(logits, np.array([5, 6, 7]), 2)
    for row, (token_id, given) in enumerate(zip([5, 6, 7], found, strict=True)):
        assert given.token_ids == [token_id, *np.argsort(-exact[row], kind="stable")[:2]]
        np.testing.assert_allclose(given.logprobs, exact[row, given.token_ids], rtol=1e-9)
