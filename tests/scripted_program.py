"""The program on an engine whose core is scripted: all around the core is real, and answers are known."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from octavo.cli.program import program
from octavo.config import EngineConfig
from octavo.frontend.chat_template import ChatTemplate
from octavo.frontend.llm_engine import LLMEngine, load_tokenizer
from octavo.frontend.tokenizer import Tokenizer
from octavo.types.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineInfo,
    FinishReason,
    SchedulerStats,
)
from octavo.types.requests import EngineCoreRequest
from tests.tiny_model import END_TOKEN_ID, NUM_TOKENS

CONTEXT = 200


class ScriptedCore:
    """An `EngineCoreClient` that answers each request with the next of `answers`, a byte (a token) a step.

    `before_step` is called with the number of tokens the answer under way has.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.info = EngineInfo(
            model_name="scripted",
            vocab_size=NUM_TOKENS,
            max_model_len=CONTEXT,
            max_logprobs=20,
            scheduling_policy="fcfs",
            features=frozenset(),
        )
        self.tokenizer = tokenizer
        self.answers: list[str] = ["Paris."]
        self.configs: list[EngineConfig] = []
        self.requests: list[EngineCoreRequest] = []
        self.aborted: list[str] = []
        self.before_step: Callable[[int], None] = lambda num_tokens: None
        self.failure: str | None = None
        self.num_sent = 0

    @property
    def prompts(self) -> list[str]:
        """The prompts of the requests so far, control tokens included."""
        return [self.tokenizer.decode(request.prompt_token_ids, False) for request in self.requests]

    def add_request(self, request: EngineCoreRequest) -> None:
        self.requests.append(request)
        self.num_sent = 0

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        self.aborted += request_ids

    def get_output(self) -> EngineCoreOutputs:
        self.before_step(self.num_sent)
        request = self.requests[-1]
        tokens = [*self.answers[len(self.requests) - 1].encode(), END_TOKEN_ID]
        token_id = tokens[self.num_sent]
        self.num_sent += 1
        reason: FinishReason | None = None
        stop_reason: str | None = None
        if self.failure is not None:
            reason, stop_reason = FinishReason.ERROR, self.failure
        elif token_id == END_TOKEN_ID:
            reason = FinishReason.STOP
        elif self.num_sent == request.sampling_params.max_tokens:
            reason = FinishReason.LENGTH
        output = EngineCoreOutput(request.request_id, [token_id], reason, stop_reason)
        return EngineCoreOutputs([output], SchedulerStats(1, 0, 0.0))

    def reset_prefix_cache(self) -> bool:
        return True


@pytest.fixture
def core(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedCore:
    """The core of every engine that is made from now on; any model name will do."""
    tokenizer = load_tokenizer(tiny_model)
    core = ScriptedCore(tokenizer)

    def from_config(config: EngineConfig) -> LLMEngine:
        core.configs.append(config)
        return LLMEngine(core, tokenizer, ChatTemplate.from_setting(config.model.chat_template, tokenizer))

    monkeypatch.setattr(LLMEngine, "from_config", from_config)
    return core


Octavo = Callable[..., Result]


@pytest.fixture
def octavo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Octavo]:
    """Runs the program: `octavo("run", "smollm2", input="...")`. Its caches are empty folders."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("OCTAVO_LOG", raising=False)
    logger = logging.getLogger("octavo")
    level, handlers = logger.level, logger.handlers[:]
    yield lambda *arguments, input=None: CliRunner().invoke(
        program, arguments, input=input, prog_name="octavo"
    )
    logger.setLevel(level)
    logger.handlers[:] = handlers  # what one program has set up is not there in the next
