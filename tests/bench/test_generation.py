from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.bench import generation
from octavo.bench.generation import Load, LoadRunner, Run, StepTime, TimedBackend
from octavo.config import EngineConfig
from octavo.errors import CapacityError, ConfigError, OctavoError
from octavo.frontend.llm_engine import LLMEngine

NUM_BLOCKS = 17  # one of which is nobody's

# Two requests of 8 tokens in, 3 out. The second one's prompt did not fit into the first step.
LOAD = Load(2, 8, 3)
RUN = Run(
    LOAD,
    steps=(
        StepTime(end_s=1.0, backend_s=0.9, num_tokens=1),
        StepTime(end_s=2.0, backend_s=0.9, num_tokens=2),
        StepTime(end_s=2.5, backend_s=0.4, num_tokens=2),
        StepTime(end_s=3.0, backend_s=0.2, num_tokens=1),
    ),
    num_prefill_steps=2,
)


@pytest.fixture
def runner(tiny_model: Path) -> LoadRunner:
    return LoadRunner(_engine(tiny_model))


def _engine(model: Path, *, enable_prefix_caching: bool = False) -> LLMEngine:
    return LLMEngine.from_config(
        EngineConfig.from_settings(
            model=str(model),
            backend="reference",
            max_num_seqs=4,
            max_num_batched_tokens=16,
            max_model_len=64,
            block_size=16,
            num_blocks_override=NUM_BLOCKS,
            enable_prefix_caching=enable_prefix_caching,
        )
    )


def test_prefill_ends_when_every_request_has_its_first_token() -> None:
    assert RUN.time_to_first_token_s == 2.0
    assert RUN.prefill_tokens_per_s == 16 / 2.0


def test_decode_is_what_comes_after() -> None:
    assert RUN.decode_tokens_per_s == 3 / 1.0
    assert RUN.decode_step_s == 0.5


def test_all_tokens_count_over_the_whole_time() -> None:
    assert LOAD.num_tokens == 22
    assert RUN.total_tokens_per_s == 22 / 3.0


def test_what_the_backend_does_not_take_is_pythons_share_of_decode() -> None:
    assert RUN.python_share == pytest.approx(1 - 0.6 / 1.0)


def test_one_token_for_each_request_leaves_nothing_to_decode() -> None:
    run = Run(Load(1, 8, 1), RUN.steps[:1], num_prefill_steps=1)
    assert (run.decode_tokens_per_s, run.decode_step_s, run.python_share) == (None, None, None)


def test_a_run_generates_exactly_what_the_load_says(runner: LoadRunner) -> None:
    run = runner.run(Load(3, 12, 6))
    assert sum(step.num_tokens for step in run.steps) == 3 * 6
    assert [step.num_tokens for step in run.steps[run.num_prefill_steps :]][:1] == [3]
    ends = [step.end_s for step in run.steps]
    assert ends == sorted(ends)
    assert 0 < run.python_share < 1


def test_prompts_that_need_two_steps_are_prefilled_in_two(runner: LoadRunner) -> None:
    assert runner.run(Load(1, 16, 2)).num_prefill_steps == 1
    assert runner.run(Load(2, 16, 2)).num_prefill_steps == 2


def test_the_same_load_runs_as_often_as_asked_for_after_warming_up(
    runner: LoadRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []

    def run(load: Load) -> Run:
        loads.append(load)
        return RUN

    monkeypatch.setattr(runner, "run", run)
    load = Load(1, 8, 30)
    assert runner.measure(load, least=3, num_iters=2) == [RUN, RUN]
    assert loads == [Load(1, 8, generation.NUM_WARM_UP_TOKENS), load, load]


@pytest.mark.parametrize(("wall_s", "num_runs"), [(3.0, 3), (0.25, 6)])
def test_by_default_a_load_runs_until_it_has_taken_long_enough(
    runner: LoadRunner, monkeypatch: pytest.MonkeyPatch, wall_s: float, num_runs: int
) -> None:
    run = Run(LOAD, (StepTime(wall_s, 0.0, 6),), 1)
    monkeypatch.setattr(runner, "run", lambda load: run)
    monkeypatch.setattr(generation, "LEAST_MEASURED_S", 1.5)
    assert len(runner.measure(LOAD, least=3)) == num_runs


def test_a_request_that_fails_ends_the_benchmark(runner: LoadRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(batch: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(runner.backend, "forward", fail)
    with pytest.raises(OctavoError, match="a request of the benchmark failed: RuntimeError: out of order"):
        runner.run(LOAD)


def test_requests_that_are_to_run_at_once_must_all_have_rows_and_blocks(runner: LoadRunner) -> None:
    runner.check_fits(Load(4, 48, 16))
    with pytest.raises(ConfigError, match="max_num_seqs is 4, but 5 requests"):
        runner.check_fits(Load(5, 4, 4))
    with pytest.raises(CapacityError, match=r"4 requests of 65 tokens take 20 blocks.*which has 16"):
        runner.check_fits(Load(4, 48, 17))


def test_a_prefix_takes_its_blocks_once(runner: LoadRunner) -> None:
    runner.check_fits(Load(4, 32, 16, prefix_len=64))
    with pytest.raises(CapacityError, match=r"4 requests of 113 tokens take 20 blocks.*which has 16"):
        runner.check_fits(Load(4, 32, 17, prefix_len=64))


def test_a_prefix_is_computed_before_the_clock_starts_and_prompts_are_computed_each_time(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = LoadRunner(_engine(tiny_model, enable_prefix_caching=True))
    counts: list[int] = []
    forward = runner.backend.forward

    def counting(batch: Any) -> Any:
        counts.append(batch.num_tokens)
        return forward(batch)

    monkeypatch.setattr(runner.backend, "forward", counting)
    for prefix_steps in ([16, 16, 1], [1]):
        counts.clear()
        run = runner.run(Load(3, 4, 2, prefix_len=32))
        assert counts == [*prefix_steps, 12, 3]
        assert len(run.steps) == 2


def test_a_timed_backend_does_what_its_backend_does_and_counts_the_time() -> None:
    class Backend:
        kv_head_bytes = 8

        def forward(self, batch: int, *, twice: bool = False) -> int:
            return batch * (2 if twice else 1)

        def fail(self) -> None:
            raise ValueError("no")

    backend = TimedBackend(Backend())
    assert backend.kv_head_bytes == 8
    assert backend.seconds == 0
    assert backend.forward(21, twice=True) == 42
    after_forward = backend.seconds
    assert after_forward > 0
    with pytest.raises(ValueError, match="no"):
        backend.fail()
    assert backend.seconds > after_forward
