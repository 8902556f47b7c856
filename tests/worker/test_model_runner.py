"""The order of a step's parts, and how failures are left behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.token_table import TokenTable
from octavo.types.adjustments import LogitsAdjustments
from octavo.types.batch import Batch
from octavo.types.params import SamplingParams
from octavo.types.protocols import Done
from octavo.types.sampling import (
    INVALID_TOKEN_ID,
    NO_LOGPROBS,
    SamplerOutput,
    SamplingMetadata,
    TokenLogprobs,
)
from octavo.types.steps import ModelRunnerOutput, NewRequestData, SchedulerOutput
from octavo.worker.model_runner import ModelRunner
from tests.worker.steps import make_input_batch, new, plan


class FakeBackend:
    """Samples 10 * row of logits + position; notes calls in `log`, and raises in the one named `fails_in`."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.fails_in: str | None = None
        self.invalid_rows: set[int] = set()
        self.tokens = TokenTable(8, 4096)

    def write_tokens(self, row: int, start: int, token_ids: list[int]) -> None:
        self.tokens.write(row, start, token_ids)

    def forward(self, batch: Batch) -> str:
        self._note("forward", self.tokens.gather(batch).tolist())
        return "hidden"

    def compute_logits(self, hidden: str, indices: np.ndarray) -> str:
        self._note("compute_logits", hidden, indices.tolist())
        return "logits"

    def sample(self, logits: str, batch: Batch, metadata: SamplingMetadata) -> Done[SamplerOutput]:
        self._note("sample", logits, metadata.positions.tolist())
        count = len(metadata.positions)
        token_ids = 10 * np.arange(count) + metadata.positions
        for row in self.invalid_rows:
            token_ids[row] = INVALID_TOKEN_ID
        wanted = metadata.num_logprobs != NO_LOGPROBS
        logprobs = [
            TokenLogprobs([int(t)], [-1.0], 1) if w else None for t, w in zip(token_ids, wanted, strict=True)
        ]
        return Done(self.tokens.take_in(batch, SamplerOutput(token_ids, logprobs)))

    def zero_blocks(self, block_ids: np.ndarray) -> None:
        self._note("zero_blocks", block_ids.tolist())

    def copy_blocks(self, sources: np.ndarray, destinations: np.ndarray) -> None:
        self._note("copy_blocks", sources.tolist(), destinations.tolist())

    def _note(self, name: str, *details: object) -> None:
        self.log.append((name, *details))
        if self.fails_in == name:
            raise RuntimeError(f"{name} fails")


class FakeExtension:
    """Notes every call in `log`."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def admit(self, request: NewRequestData) -> None:
        self.log.append(("admit", request.req_id))

    def before_forward(self, output: SchedulerOutput, batch: Batch) -> None:
        self.log.append(("before_forward", batch.req_ids))

    def after_forward(self, batch: Batch, hidden: str) -> None:
        self.log.append(("after_forward", hidden))

    def before_sample(self, batch: Batch, adjustments: LogitsAdjustments) -> None:
        self.log.append(("before_sample", batch.logits_rows.tolist()))

    def after_sample(self, batch: Batch, sampled: SamplerOutput, output: ModelRunnerOutput) -> None:
        self.log.append(("after_sample", dict(output.sampled_token_ids)))


def make_runner() -> tuple[ModelRunner, FakeBackend, list[Any]]:
    log: list[Any] = []
    backend = FakeBackend(log)
    return ModelRunner(backend, make_input_batch(), [FakeExtension(log)]), backend, log


def run(runner: ModelRunner, output: SchedulerOutput) -> ModelRunnerOutput:
    runner.execute_model(output)
    return runner.sample_tokens().result()


def test_a_step_calls_backend_and_features_in_a_fixed_order() -> None:
    runner, _, log = make_runner()
    admitted = [new("a", 0, [1, 2], [1]), new("b", 1, range(9), [2])]
    output = plan(
        {"a": 2, "b": 3}, admitted, new_block_ids_to_zero=[2, 1], kv_cache_block_copies=[(7, 1), (5, 2)]
    )
    result = run(runner, output)
    assert log == [
        ("admit", "a"),
        ("admit", "b"),
        ("zero_blocks", [2, 1]),
        ("copy_blocks", [7, 5], [1, 2]),
        ("before_forward", ["a", "b"]),
        ("forward", [1, 2, 0, 1, 2]),
        ("after_forward", "hidden"),
        ("compute_logits", "hidden", [1]),
        ("before_sample", [0]),
        ("sample", "logits", [2]),
        ("after_sample", {"a": [2]}),
    ]
    assert result.sampled_token_ids == {"a": [2]}
    assert result.logprobs == {}


def test_only_requests_whose_tokens_are_complete_are_reported() -> None:
    runner, _, _ = make_runner()
    admitted = [new("a", 0, range(9), [1]), new("b", 1, [1, 2], [2]), new("c", 2, range(5), [3])]
    result = run(runner, plan({"a": 4, "b": 2, "c": 5}, admitted))
    assert result.sampled_token_ids == {"b": [2], "c": [15]}
    assert run(runner, plan({"a": 4})).sampled_token_ids == {}
    assert run(runner, plan({"a": 1})).sampled_token_ids == {"a": [9]}


def test_sampled_tokens_run_in_the_next_step() -> None:
    runner, _, log = make_runner()
    run(runner, plan({"a": 2}, [new("a", 0, [1, 2], [1])]))
    run(runner, plan({"a": 1}))
    assert [entry[1] for entry in log if entry[0] == "forward"] == [[1, 2], [2]]
    assert [entry[2] for entry in log if entry[0] == "sample"] == [[2], [3]]


def test_logprobs_go_to_the_requests_that_ask_for_them() -> None:
    runner, _, _ = make_runner()
    asks = SamplingParams(logprobs=0, seed=1)
    result = run(
        runner, plan({"a": 1, "b": 1}, [new("a", 0, [1], [1]), new("b", 1, [1], [2], sampling_params=asks)])
    )
    assert result.logprobs == {"b": [TokenLogprobs([11], [-1.0], 1)]}


def test_a_token_that_is_none_is_reported_as_such() -> None:
    runner, backend, _ = make_runner()
    backend.invalid_rows = {0}
    result = run(runner, plan({"a": 1, "b": 1}, [new("a", 0, [1], [1]), new("b", 1, [1], [2])]))
    assert result.sampled_token_ids == {"a": [INVALID_TOKEN_ID], "b": [11]}


def test_a_step_without_tokens_only_frees_rows_of_finished_requests() -> None:
    runner, _, log = make_runner()
    run(runner, plan({"a": 1}, [new("a", 0, [1], [1])]))
    del log[:]
    result = run(runner, plan({}, finished=["a"], num_common_prefix_blocks=[]))
    assert log == []
    assert result == ModelRunnerOutput(sampled_token_ids={}, logprobs={})
    assert runner.input_batch.row_of == {}


def test_a_step_without_tokens_still_zeroes_and_copies_blocks() -> None:
    runner, _, log = make_runner()
    run(runner, plan({}, new_block_ids_to_zero=[4], kv_cache_block_copies=[(3, 4)]))
    assert log == [("zero_blocks", [4]), ("copy_blocks", [3], [4])]


@pytest.mark.parametrize("part", ["forward", "compute_logits", "sample"])
def test_after_a_step_that_failed_the_others_go_on_and_the_row_can_be_taken(part: str) -> None:
    runner, backend, _ = make_runner()
    run(runner, plan({"b": 2}, [new("b", 1, [1, 2], [2])]))
    backend.fails_in = part
    with pytest.raises(RuntimeError, match="fails"):
        run(runner, plan({"a": 3}, [new("a", 0, [1, 2, 3], [1])]))
    backend.fails_in = None
    result = run(runner, plan({"b": 1, "c": 2}, [new("c", 0, [5, 6], [3])], finished=["a"]))
    assert result.sampled_token_ids == {"b": [3], "c": [12]}


def test_nothing_is_sampled_twice() -> None:
    runner, _, _ = make_runner()
    run(runner, plan({"a": 1}, [new("a", 0, [1], [1])]))
    assert runner.sample_tokens().result().sampled_token_ids == {}


class PendingBackend(FakeBackend):
    """Samples only when it is asked for the result."""

    def sample(self, logits: str, batch: Batch, metadata: SamplingMetadata) -> PendingBackend:
        self._batch, self._metadata = batch, metadata
        return self

    def result(self) -> SamplerOutput:
        return super().sample("logits", self._batch, self._metadata).result()


def test_the_next_forward_pass_does_not_wait_for_what_was_sampled() -> None:
    log: list[Any] = []
    runner = ModelRunner(PendingBackend(log), make_input_batch(), [FakeExtension(log)])
    runner.execute_model(plan({"a": 2}, [new("a", 0, [1, 2], [1])]))
    first = runner.sample_tokens()
    runner.execute_model(plan({"a": 1}))
    assert [entry[0] for entry in log if entry[0] in ("forward", "sample")] == ["forward", "forward"]
    runner.sample_tokens()
    names = [entry[0] for entry in log]
    assert names.index("after_sample") < len(names) - 1 == names.index("before_sample", names.index("sample"))
    assert first.result().sampled_token_ids == {"a": [2]}


def test_what_goes_wrong_in_one_step_is_not_raised_in_the_next() -> None:
    log: list[Any] = []
    backend = PendingBackend(log)
    runner = ModelRunner(backend, make_input_batch())
    runner.execute_model(plan({"a": 2}, [new("a", 0, [1, 2], [1])]))
    first = runner.sample_tokens()
    backend.fails_in = "sample"
    runner.execute_model(plan({"b": 1}, [new("b", 1, [3], [2])]))
    second = runner.sample_tokens()
    backend.fails_in = None
    assert second.result().sampled_token_ids == {"b": [1]}
    with pytest.raises(RuntimeError, match="sample fails"):
        first.result()


def test_accepted_drafts_are_reported_with_the_token_after_them() -> None:
    runner, _, _ = make_runner()
    run(runner, plan({"a": 2}, [new("a", 0, [1, 2], [1])]))  # samples 2
    # Rows of logits give 3, 10 + 4 and 20 + 5: the first draft is right, the second is not.
    result = run(runner, plan({"a": 3}, scheduled_spec_decode_tokens={"a": [3, 15]}))
    assert result.sampled_token_ids == {"a": [3, 14]}
    assert run(runner, plan({"a": 1})).sampled_token_ids == {"a": [5]}
