"""The same request gives the same bits, whatever runs beside it and however it is cut up and laid out."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.backend import Backend
from octavo.models.model import Model
from tests.backends.steps import Request, cache_config, run_steps, whole_prompt_logits
from tests.models.tiny_llama import make_config, make_model
from tests.native import BACKENDS, make_backend

PROMPT_LENGTH = 75
NUM_BLOCKS = 64


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model(make_config(attention_bias=True, head_dim=16))


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest, model: Model) -> Backend:
    backend = make_backend(request.param)
    backend.load_model(model)
    return backend


@pytest.fixture(scope="module")
def prompt() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 101, PROMPT_LENGTH)


@pytest.fixture(scope="module")
def expected(backend: Backend, model: Model, prompt: np.ndarray) -> np.ndarray:
    return whole_prompt_logits(backend, model, prompt)


def make_request(token_ids: np.ndarray, block_size: int, free_blocks: list[int]) -> Request:
    num_blocks = -(-len(token_ids) // block_size)
    return Request(token_ids, np.array([free_blocks.pop() for _ in range(num_blocks)], np.int32))


def shuffled_blocks() -> list[int]:
    return (1 + np.random.default_rng(2).permutation(NUM_BLOCKS - 1)).tolist()


def in_chunks(size: int) -> list[dict[int, int]]:
    return [{0: min(size, PROMPT_LENGTH - start)} for start in range(0, PROMPT_LENGTH, size)]


@pytest.mark.parametrize("block_size", [16, 32, 48])
@pytest.mark.parametrize("chunk", [1, 7, 16, 64, PROMPT_LENGTH])
def test_chunks_and_blocks_leave_no_trace(
    backend: Backend,
    model: Model,
    prompt: np.ndarray,
    expected: np.ndarray,
    chunk: int,
    block_size: int,
) -> None:
    backend.allocate_kv_cache(cache_config(backend, model, block_size, NUM_BLOCKS))
    request = make_request(prompt, block_size, shuffled_blocks())
    (logits,) = run_steps(backend, [request], in_chunks(chunk), block_size)
    assert np.array_equal(logits, expected)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_other_requests_leave_no_trace(
    backend: Backend, model: Model, prompt: np.ndarray, expected: np.ndarray, place: int
) -> None:
    backend.allocate_kv_cache(cache_config(backend, model, 16, NUM_BLOCKS))
    free_blocks = shuffled_blocks()
    random = np.random.default_rng(3)
    lengths = [40, 9, 61]
    lengths.insert(place, PROMPT_LENGTH)
    prompts = [random.integers(0, 101, length) for length in lengths]
    prompts[place] = prompt
    requests = [make_request(token_ids, 16, free_blocks) for token_ids in prompts]
    steps = []
    left = dict(enumerate(lengths))
    while left:
        counts = {index: min(int(random.integers(1, 30)), rest) for index, rest in left.items()}
        steps.append(counts)
        left = {index: rest - counts[index] for index, rest in left.items() if rest > counts[index]}
    logits = run_steps(backend, requests, steps, 16)
    assert np.array_equal(logits[place], expected)


def test_a_prefix_taken_from_the_cache_leaves_no_trace(
    backend: Backend, model: Model, prompt: np.ndarray, expected: np.ndarray
) -> None:
    block_size, num_cached = 16, 48
    backend.allocate_kv_cache(cache_config(backend, model, block_size, NUM_BLOCKS))
    free_blocks = shuffled_blocks()
    first = make_request(prompt, block_size, free_blocks)
    run_steps(backend, [first], [{0: PROMPT_LENGTH}], block_size)
    second = make_request(prompt, block_size, free_blocks)
    second.block_ids[: num_cached // block_size] = first.block_ids[: num_cached // block_size]
    second.num_computed = num_cached
    (logits,) = run_steps(backend, [second], [{0: 10}, {0: PROMPT_LENGTH - num_cached - 10}], block_size)
    assert np.array_equal(logits, expected[num_cached:])


def test_logits_of_a_token_do_not_depend_on_which_others_are_asked_for(
    backend: Backend, model: Model, expected: np.ndarray
) -> None:
    hidden = np.random.default_rng(4).standard_normal((40, 48), dtype=np.float32)
    whole = backend.compute_logits(hidden, np.arange(40))
    for indices in ([7], [39, 7], list(range(3, 37))):
        assert np.array_equal(backend.compute_logits(hidden, np.array(indices)), whole[indices])


def test_no_logits_are_computed_when_none_are_asked_for(backend: Backend, expected: np.ndarray) -> None:
    assert backend.compute_logits(np.zeros((3, 48), np.float32), np.empty(0, np.int64)).shape == (0, 101)
