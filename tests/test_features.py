"""Pipes between a feature's halves: what one half sends, another receives, and no other part looks inside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import SamplingParams
from octavo import features as features_module
from octavo.features import EngineParts, Feature, FrontEndParts
from octavo.scheduler.budget import StepBudget
from octavo.scheduler.constraint import Constraint
from octavo.scheduler.request import Request
from octavo.types.adjustments import LogitsAdjustments
from octavo.types.batch import Batch, RowsInput
from octavo.types.protocols import Extension, RequestHandler
from octavo.types.sampling import SamplerOutput
from octavo.types.steps import ModelRunnerOutput, NewRequestData, SchedulerOutput
from tests.frontend.tiny_llm import make_llm
from tests.native import BACKENDS
from tests.sampling.test_sampler import Row, metadata


class Handler(RequestHandler):
    """Sends the length of the prompt, and adds the parameters' seed to what comes back."""

    def prepare(self, params: SamplingParams, prompt_token_ids: Sequence[int]) -> Any:
        return {"length": len(prompt_token_ids)}

    def make_result(self, result: Any, params: SamplingParams) -> Any:
        return {**result, "seed": params.seed}


class Counts(Constraint):
    """Sends, with each step, how many tokens each request runs in it."""

    def limit(self, request: Request, start: int, count: int, budget: StepBudget) -> int:
        return min(count, 5)

    def commit(self, request: Request, start: int, count: int, budget: StepBudget) -> None:
        budget.feature_data.setdefault("test", {})[request.request_id] = count


class Worker(Extension):
    """Gathers what was sent, and sends it back with the first token."""

    def __init__(self) -> None:
        self.lengths: dict[str, int] = {}
        self.counts: dict[str, list[int]] = {}

    def admit(self, request: NewRequestData) -> None:
        self.lengths[request.req_id] = request.feature_data["test"]["length"]

    def before_forward(self, output: SchedulerOutput, batch: Batch) -> None:
        for req_id, count in output.feature_data["test"].items():
            self.counts.setdefault(req_id, []).append(count)

    def after_sample(self, batch: Batch, sampled: SamplerOutput, output: ModelRunnerOutput) -> None:
        for req_id in output.sampled_token_ids:
            if req_id in self.lengths:
                found = {"length": self.lengths.pop(req_id), "counts": list(self.counts[req_id])}
                output.add_result("test", req_id, found)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    return request.param


def with_feature(monkeypatch: pytest.MonkeyPatch, feature: Feature) -> None:
    original = features_module.load_features
    patched = lambda: {**original(), "test": feature}  # noqa: E731
    monkeypatch.setattr("octavo.features.load_features", patched)
    monkeypatch.setattr("octavo.engine.build.load_features", patched)


def test_what_the_halves_send_arrives(
    backend: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_handler(parts: FrontEndParts) -> RequestHandler:
        return Handler()

    def make_constraint(parts: EngineParts) -> Counts:
        return Counts()

    def make_extension(parts: EngineParts) -> Extension:
        return Worker()

    with_feature(monkeypatch, Feature(make_handler, make_constraint, make_extension))
    llm = make_llm(tiny_model, backend=backend)
    params = [SamplingParams(max_tokens=3, seed=seed, ignore_eos=True) for seed in (11, 12)]
    outputs = llm.generate(["a prompt of 20 bytes", "short"], params, use_tqdm=False)
    assert [output.results["test"] for output in outputs] == [
        {"length": 20, "counts": [5, 5, 5, 5], "seed": 11},
        {"length": 5, "counts": [5], "seed": 12},
    ]


class Embeddings(Extension):
    """Replaces the embedding of every `?` by that of `!`, which it takes from the model's own table."""

    def __init__(self, table: np.ndarray, tokens: Any) -> None:
        self.table = table
        self.tokens = tokens

    def before_forward(self, output: SchedulerOutput, batch: Batch) -> None:
        indices = np.flatnonzero(self.tokens.gather(batch) == ord("?"))
        if len(indices):
            values = np.repeat(self.table[ord("!")][None], len(indices), axis=0)
            batch.inputs["embeddings"] = RowsInput(indices, values)


def test_embeddings_that_a_feature_gives_take_the_place_of_the_tokens_own(
    backend: str, tiny_model: Path
) -> None:
    from safetensors.numpy import load_file

    llm = make_llm(tiny_model, backend=backend, enable_prefix_caching=False)
    params = SamplingParams(
        temperature=0, max_tokens=8, logprobs=3, ignore_eos=True, logit_bias={ord("?"): -100}
    )
    prompts = ["what! a day! it was", "what? a day? it was"]
    expected, other = llm.generate(prompts, params, use_tqdm=False)
    assert expected.outputs[0].logprobs != other.outputs[0].logprobs
    runner = llm.engine.client.core.executor.runner
    table = load_file(tiny_model / "model.safetensors")["model.embed_tokens.weight"].astype(np.float32)
    runner.extensions = [*runner.extensions, Embeddings(table, runner.backend._tokens)]
    replaced = llm.generate(prompts[1], params, use_tqdm=False)[0]
    assert replaced.outputs[0].token_ids == expected.outputs[0].token_ids
    assert replaced.outputs[0].logprobs == expected.outputs[0].logprobs


def test_adjustments_of_several_features_add_up() -> None:
    adjustments = LogitsAdjustments(2, 40)
    adjustments.forbid(0, [3])
    adjustments.allow_only(0, np.array([0b11110, 1], np.uint32))
    adjustments.add_bias(1, np.array([5], np.int32), np.array([1.5], np.float32))
    adjustments.add_bias(1, np.array([5, 6], np.int32), np.array([1.0, -1.0], np.float32))
    adjusted = adjustments.apply_to(metadata([Row(), Row()]))
    assert [bin(int(word)) for word in adjusted.allowed[0]] == ["0b10110", "0b1"]
    assert (adjusted.allowed[1] == 2**32 - 1).all()
    assert adjusted.bias.tokens.offsets.tolist() == [0, 0, 3]
    assert adjusted.bias.tokens.token_ids.tolist() == [5, 5, 6]
    assert adjusted.bias.values.tolist() == [1.5, 1.0, -1.0]


def test_a_step_without_adjustments_costs_nothing() -> None:
    plain = metadata([Row(), Row()])
    assert LogitsAdjustments(2, 40).apply_to(plain) is plain
