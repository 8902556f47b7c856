"""`LLMEngine`: the synchronous engine. Callers add requests, run steps and abort requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from octavo.config import EngineConfig
from octavo.engine.client import EngineCoreClient, InprocClient, check_architecture
from octavo.errors import EngineDeadError
from octavo.frontend.chat_template import ChatTemplate
from octavo.frontend.input_processor import InputProcessor, ProcessedInput, Prompt
from octavo.frontend.output_collector import OutputCollector
from octavo.frontend.output_processor import CoreMessages, OutputProcessor
from octavo.frontend.tokenizer import Tokenizer
from octavo.hub import ALIASES, resolve_model, resolve_tokenizer
from octavo.logs import ensure_logging
from octavo.types.options import RequestOptions
from octavo.types.outputs import EngineInfo
from octavo.types.params import SamplingParams
from octavo.types.steps import PauseState
from octavo.weights.gguf import GGUFFile
from octavo.weights.loader import ModelFiles


class LLMEngine:
    """The engine from text to text, driven step by step. `LLM` and the command line are built on it."""

    def __init__(self, client: EngineCoreClient, tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.input_processor = InputProcessor(client.info, tokenizer)
        self.output_processor = OutputProcessor(tokenizer, self.input_processor.handlers)
        # One thread at a time changes the engine or runs a step. `LLM.generate` holds the lock from its first
        # request to its last output.
        self.lock = threading.RLock()
        self._dropped_sessions: list[str] = []  # to be ended with the next step
        self._closed = False

    @classmethod
    def from_config(cls, config: EngineConfig) -> LLMEngine:
        """Find the configured model, fetch it if it is not on this disk, and load it.

        Also sets up logging, unless the program has done so.
        """
        ensure_logging("info" if config.observation.log_stats else "warning")
        alias = ALIASES.get(config.model.model)
        if alias is not None:
            check_architecture(alias.architecture)  # before fetching a model that cannot run
        path = resolve_model(config.model.model, revision=config.model.revision)
        other = config.model.tokenizer
        tokenizer = load_tokenizer(path if other is None else resolve_tokenizer(other))
        chat_template = ChatTemplate.from_setting(
            config.model.chat_template, tokenizer, config.model.allow_special_tokens_in_content
        )
        return cls(InprocClient(config, path, tokenizer.vocab_size), tokenizer, chat_template)

    @property
    def info(self) -> EngineInfo:
        """The engine's limits and features."""
        return self.client.info

    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams, options: RequestOptions | None = None
    ) -> OutputCollector:
        """Check and queue a request. Each `step` puts its new output into the returned collector.

        Raises RequestError for an invalid request. If the core rejects the request later, the collector
        raises the RequestError.
        """
        return self.add_processed(request_id, self.input_processor.process_inputs(prompt, params, options))

    def add_processed(
        self,
        request_id: str,
        request: ProcessedInput,
        announce: Callable[[OutputCollector], object] = lambda collector: None,
    ) -> OutputCollector:
        """Queue a request that `input_processor` has checked. `announce` is as in `OutputCollector`."""
        collector = OutputCollector(request_id, request.params.output_kind, announce)
        with self.lock:
            self._require_open()
            arrival_time = time.time()
            core_ids = self.output_processor.add_request(request, arrival_time, collector)
            for index, core_id in enumerate(core_ids):
                self.client.add_request(request.for_answer(core_id, index, arrival_time))
        return collector

    def step(self) -> None:
        """Run one step and put its outputs into the collectors. Raises EngineDeadError after `close`.

        If an interrupt or a failure of the engine breaks the step off, its outputs may be lost. Therefore
        every unfinished request ends with an error.
        """
        with self.lock:
            self._require_open()
            while self._dropped_sessions:
                self.end_session(self._dropped_sessions.pop())
            try:
                self._tell_core(self.output_processor.process_outputs(self.client.get_output()))
            except BaseException as error:
                reason = f"a step of the engine was broken off: {type(error).__name__}: {error}"
                self.client.abort_requests(self.output_processor.fail_all(reason))
                raise

    def _tell_core(self, messages: CoreMessages) -> None:
        if messages.request_ids_to_stop:
            self.client.stop_requests(messages.request_ids_to_stop)
        if messages.request_ids_to_abort:
            self.client.abort_requests(messages.request_ids_to_abort)
        for session_id, error in messages.sessions_to_end.items():
            self.client.end_session(session_id, error)

    def abort_requests(self, request_ids: str | Iterable[str]) -> None:
        """Abort requests by the ids they were added under. They produce no more output.

        Aborting a turn ends its session.
        """
        with self.lock:
            self.client.abort_requests(self.output_processor.forget_requests(_as_ids(request_ids)))

    def stop_requests(self, request_ids: str | Iterable[str]) -> None:
        """Stop requests by the ids they were added under. They produce no more output.

        A session continues after a stopped turn. Its text then includes the turn's prompt and the answer so
        far, without the answer's last token. A turn that has not begun is dropped.
        """
        with self.lock:
            self.client.stop_requests(self.output_processor.forget_requests(_as_ids(request_ids)))

    def end_session(self, session_id: str) -> None:
        """End a session and its turns. They produce no more output."""
        with self.lock:
            self.output_processor.forget_session(session_id)
            self.client.end_session(session_id)

    def end_session_soon(self, session_id: str) -> None:
        """End a session at the next step. Takes no lock, so the garbage collector may call it at any time."""
        self._dropped_sessions.append(session_id)

    def pause(self, state: PauseState) -> None:
        """Set which requests may run: none (PAUSED_ALL), only begun ones (PAUSED_NEW), or all (UNPAUSED).

        To drain the engine, pause with PAUSED_NEW and step until `has_begun_requests` is false.
        """
        with self.lock:
            self.client.pause(state)

    def has_begun_requests(self) -> bool:
        """Whether any request has begun and not ended."""
        return self.client.has_begun_requests()

    def close(self) -> None:
        """End all requests, and release threads and sockets. May be called again."""
        with self.lock:
            self._closed = True
            self.client.close()

    def _require_open(self) -> None:
        if self._closed:
            raise EngineDeadError("the engine has been closed; make another")

    def has_unfinished_requests(self) -> bool:
        """Whether any request has outputs to come."""
        return self.output_processor.has_unfinished_requests()


def _as_ids(request_ids: str | Iterable[str]) -> Iterable[str]:
    return [request_ids] if isinstance(request_ids, str) else request_ids


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a GGUF file or a Hugging Face folder."""
    return Tokenizer.from_folder(path) if path.is_dir() else make_tokenizer(GGUFFile.open(path))


def make_tokenizer(source: ModelFiles) -> Tokenizer:
    """The tokenizer that comes with a model."""
    if isinstance(source, GGUFFile):
        return Tokenizer.from_gguf(source.metadata)
    return Tokenizer.from_folder(source.path)
