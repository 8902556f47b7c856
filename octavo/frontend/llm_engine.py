"""`LLMEngine`: the whole engine behind four calls, synchronous: add a request, step, abort, is there more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

from octavo.config import EngineConfig
from octavo.engine.client import EngineCoreClient, InprocClient, check_architecture
from octavo.errors import EngineDeadError
from octavo.frontend.chat_template import ChatTemplate
from octavo.frontend.input_processor import InputProcessor, ProcessedInput, Prompt
from octavo.frontend.output_processor import OutputProcessor
from octavo.frontend.tokenizer import Tokenizer
from octavo.hub import ALIASES, resolve_model, resolve_tokenizer
from octavo.logs import ensure_logging
from octavo.types.options import RequestOptions
from octavo.types.outputs import EngineInfo, RequestOutput
from octavo.types.params import SamplingParams
from octavo.types.steps import PauseState
from octavo.weights.gguf import GGUFFile
from octavo.weights.loader import ModelFiles


class LLMEngine:
    """Text in, text out, a step at a time. What `LLM` and the command line are made of."""

    def __init__(self, client: EngineCoreClient, tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.input_processor = InputProcessor(client.info, tokenizer)
        self.output_processor = OutputProcessor(tokenizer, self.input_processor.handlers)
        # One thread at a time. Who waits for outputs of its own holds it from the request to the last one.
        self.lock = threading.RLock()
        self._closed = False

    @classmethod
    def from_config(cls, config: EngineConfig) -> LLMEngine:
        """Find, fetch if need be, and load the configured model. Shows the log, where nothing else does."""
        ensure_logging("info" if config.observation.log_stats else "warning")
        alias = ALIASES.get(config.model.model)
        if alias is not None:
            check_architecture(alias.architecture)  # before it is fetched
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
    ) -> None:
        """Check and queue a request. Raises RequestError.

        A resumable one begins a session, or is the next turn of the session that `request_id` names: its
        prompt goes on where the last turn ended. Each turn has outputs of its own, the last one `finished`.
        A session ends with `abort_requests`, or when a turn ends with an error.
        """
        begins = not self.output_processor.has_session(request_id)
        processed = self.input_processor.process_inputs(prompt, params, options, begins=begins)
        self.add_processed(request_id, processed)

    def add_processed(self, request_id: str, request: ProcessedInput) -> None:
        """Queue a request that `input_processor` has checked."""
        with self.lock:
            self._require_open()
            arrival_time = time.time()
            begins = not self.output_processor.has_session(request_id)
            goes_on = request.options.resumable and not begins
            core_ids = self.output_processor.add_request(request_id, request, arrival_time)
            try:
                for index, core_id in enumerate(core_ids):
                    self.client.add_request(request.for_answer(core_id, index, arrival_time, goes_on))
            except BaseException:  # all answers or none
                self.output_processor.take_back(request_id, core_ids, begins)
                if begins:
                    self.client.abort_requests(core_ids)
                raise

    def step(self) -> list[RequestOutput]:
        """Run one step and return what is new. Raises EngineDeadError after `close`."""
        with self.lock:
            self._require_open()
            processed = self.output_processor.process_outputs(self.client.get_output())
            if processed.request_ids_to_stop:
                self.client.stop_requests(processed.request_ids_to_stop)
            if processed.request_ids_to_abort:
                self.client.abort_requests(processed.request_ids_to_abort)
            return processed.request_outputs

    def abort_requests(self, request_ids: str | Iterable[str]) -> None:
        """End requests by the ids they were added under. Nothing more is heard of them."""
        if isinstance(request_ids, str):
            request_ids = [request_ids]
        with self.lock:
            self.client.abort_requests(self.output_processor.abort_requests(request_ids))

    def stop_turns(self, request_id: str) -> None:
        """End the turn of a session that is under way, and drop those to come. The session goes on with what
        there is: prompt and answer so far, but for its last token. Nothing more is heard of the turns.
        """
        with self.lock:
            core_id = self.output_processor.forget_turns(request_id)
            if core_id is not None:
                self.client.stop_turns(core_id)

    def pause(self, state: PauseState) -> None:
        """Let nothing run, or only what has begun (PAUSED_NEW, and stepping until `has_begun_requests` is
        false drains the engine), or all go on.
        """
        with self.lock:
            self.client.pause(state)

    def has_begun_requests(self) -> bool:
        """Whether a request has begun to run that has not ended."""
        return self.client.has_begun_requests()

    def close(self) -> None:
        """End everything that is under way, and let go of threads and sockets. May be called again."""
        with self.lock:
            self._closed = True
            self.client.close()

    def _require_open(self) -> None:
        if self._closed:
            raise EngineDeadError("the engine has been closed; make another")

    def has_unfinished_requests(self) -> bool:
        """Whether another `step` would bring anything."""
        return self.output_processor.has_unfinished_requests()


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a GGUF file or a Hugging Face folder."""
    return Tokenizer.from_folder(path) if path.is_dir() else make_tokenizer(GGUFFile.open(path))


def make_tokenizer(source: ModelFiles) -> Tokenizer:
    """The tokenizer that comes with a model."""
    if isinstance(source, GGUFFile):
        return Tokenizer.from_gguf(source.metadata)
    return Tokenizer.from_folder(source.path)
