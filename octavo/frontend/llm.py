"""`LLM`: a model in this process, for scripts and notebooks. It takes prompts and returns whole answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

import msgspec
import numpy as np

from octavo.config import DEFAULT_MODEL, EngineConfig
from octavo.errors import RequestError
from octavo.frontend.input_processor import ProcessedInput, Prompt, final_only, holds_token_ids
from octavo.frontend.interrupts import deferred_interrupt
from octavo.frontend.llm_engine import LLMEngine
from octavo.frontend.output_collector import OutputCollector
from octavo.frontend.session import Session
from octavo.frontend.tokenizer import Tokenizer
from octavo.settings import Settings
from octavo.types.options import RequestOptions
from octavo.types.outputs import RequestOutput
from octavo.types.params import SamplingParams

Message = Mapping[str, Any]
Bar = Callable[..., Any]  # makes a progress bar, with tqdm's arguments

_TEMPLATE_ARGUMENTS = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


class LLM:
    """A model, loaded and ready.

    >>> LLM("smollm2").generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))
    """

    def __init__(self, model: str = DEFAULT_MODEL, **settings: Unpack[Settings]) -> None:
        """Load `model` (an alias, a path or a hub id); `settings` are those of `octavo.config`, by name.

        Raises ConfigError, ModelNotFoundError, WeightError, UnsupportedError or CapacityError, each saying
        what to change.
        """
        self.config = EngineConfig.from_settings(model=model, **settings)
        self.engine = LLMEngine.from_config(self.config)
        self._num_requests = 0

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling parameters that `generate` uses if it receives none."""
        return SamplingParams()

    def generate(  # noqa: PLR0913 - the options of a request, by name
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Bar = True,
        priority: Sequence[int] | None = None,
        cache_salt: str | None = None,
        tenant: str | Sequence[str] | None = None,
        deadline_s: float | Sequence[float] | None = None,
    ) -> list[RequestOutput]:
        """Generate for one prompt or many; the outputs are in the order of the prompts.

        A prompt is a text, a list of token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`.
        `sampling_params`, `priority`, `tenant` and `deadline_s` are for all prompts, or one for each.
        Raises RequestError for the first request that is invalid or whose deadline cannot be met; then no
        prompt is answered. Ctrl-C ends the generation after the current step and leaves the engine usable.
        """
        prompts = _as_prompts(prompts)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        given: dict[str, Any] = {
            "sampling_params": sampling_params,
            "priority": priority,
            "tenant": tenant,
            "deadline_s": deadline_s,
        }
        columns = [_one_each(name, value, len(prompts)) for name, value in given.items()]
        requests = []
        for index, (prompt, params, urgency, who, seconds) in enumerate(zip(prompts, *columns, strict=True)):
            with _errors_name(index, len(prompts)):
                options = RequestOptions(
                    priority=urgency, tenant=who, deadline_s=seconds, cache_salt=cache_salt
                )
                process = self.engine.input_processor.process_inputs
                requests.append(process(prompt, final_only(params), options))
        return self._run(requests, use_tqdm)

    def chat(  # noqa: PLR0913 - the arguments users know from vLLM's LLM.chat
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Bar = True,
        priority: Sequence[int] | None = None,
        cache_salt: str | None = None,
        tenant: str | Sequence[str] | None = None,
        deadline_s: float | Sequence[float] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many; a message is `{"role": …, "content": …}`.

        The names of control tokens inside a message are plain text, so that a user cannot forge a message of
        another role (unless `allow_special_tokens_in_content` is set). Raises RequestError for a conversation
        that the model's chat template refuses, with the template's own message.
        """
        conversations = _as_conversations(messages)
        variables = dict(chat_template_kwargs or {})
        if taken := variables.keys() & _TEMPLATE_ARGUMENTS:
            raise RequestError(
                f"chat_template_kwargs holds {', '.join(sorted(taken))}; give that as an argument of its own",
                "chat_template_kwargs",
            )
        prompts = [
            self.engine.chat_template.encode_chat(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                **variables,
            )
            for conversation in conversations
        ]
        if sampling_params is None:
            sampling_params = msgspec.structs.replace(self.get_default_sampling_params(), max_tokens=None)
        return self.generate(
            prompts,
            sampling_params,
            use_tqdm=use_tqdm,
            priority=priority,
            cache_salt=cache_salt,
            tenant=tenant,
            deadline_s=deadline_s,
        )

    def session(
        self, *, priority: int = 0, tenant: str | None = None, cache_salt: str | None = None
    ) -> Session:
        """Begin a text that you and the model write in turns (`Session`). Raises RequestError."""
        options = RequestOptions(priority=priority, tenant=tenant, cache_salt=cache_salt)
        options.check_against(self.config.scheduler.scheduling_policy)
        session_id = f"LLM.session-{self._num_requests}"
        self._num_requests += 1
        return Session(session_id, self.engine, options)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes. Returns False and changes nothing while running requests hold blocks.

        Only unfinished turns of sessions can run during this call, since it waits for a `generate` of another
        thread. With `reset_running_requests` they are preempted first, and compute their tokens again.
        """
        with self.engine.lock:
            return self.engine.client.reset_prefix_cache(reset_running_requests)

    def close(self) -> None:
        """End all requests, and release threads and sockets. The engine cannot be used afterwards. The call
        waits for a `generate` of another thread.
        """
        self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self, requests: Sequence[ProcessedInput], use_tqdm: bool | Bar) -> list[RequestOutput]:
        """Run `requests` to their ends. If one is rejected, or at Ctrl-C or a failure, abort all of them."""
        with self.engine.lock:
            # Ids that no other user of the engine would choose.
            ids = [f"LLM.generate-{self._num_requests + index}" for index in range(len(requests))]
            self._num_requests += len(requests)
            ready: deque[OutputCollector] = deque()
            finished: dict[str, RequestOutput] = {}
            try:
                with _progress_bar(use_tqdm, len(requests)) as show, deferred_interrupt() as was_interrupted:
                    for request_id, request in zip(ids, requests, strict=True):
                        self.engine.add_processed(request_id, request, ready.append)
                    while len(finished) < len(requests):
                        self.engine.step()
                        for output in self._take_outputs(ready, ids):
                            finished[output.request_id] = output
                            show(output)
                        if was_interrupted():
                            raise KeyboardInterrupt
            except BaseException:
                self.engine.abort_requests(ids)
                raise
            return [finished[request_id] for request_id in ids]

    def _take_outputs(self, ready: deque[OutputCollector], ids: Sequence[str]) -> Iterator[RequestOutput]:
        """The outputs of the collectors in `ready`. Raises the RequestError of a rejected request."""
        while ready:
            collector = ready.popleft()
            if collector.is_rejected:
                with _errors_name(ids.index(collector.request_id), len(ids)):
                    collector.get_nowait()
            elif (output := collector.get_nowait()) is not None:
                yield output


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """`prompts` as a list. A list of numbers is one prompt, as token ids."""
    if isinstance(prompts, (str, Mapping, np.ndarray)):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise RequestError(
            f"prompts is a {type(prompts).__name__}; it must be a prompt or a list of prompts", "prompts"
        )
    is_one = bool(prompts) and holds_token_ids(prompts)
    return [prompts] if is_one else list(prompts)  # type: ignore[list-item, arg-type]


def _as_conversations(messages: Any) -> Sequence[Sequence[Message]]:
    """`messages` as conversations. A list of messages is one conversation."""
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise RequestError(
            f"messages is a {type(messages).__name__}; it must be a list of messages, or of such lists",
            "messages",
        )
    if not messages:
        raise RequestError("messages is empty; a conversation has at least one message", "messages")
    return [messages] if isinstance(messages[0], Mapping) else messages


def _one_each(name: str, given: Any, count: int) -> list[Any]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        return [given] * count
    if len(given) != count:
        raise RequestError(
            f"{name} has {len(given)} items for {count} prompts; give one for all, or one for each", name
        )
    return list(given)


@contextmanager
def _errors_name(index: int, count: int) -> Iterator[None]:
    """Add to a RequestError which of several requests it is about."""
    try:
        yield
    except RequestError as error:
        if count == 1:
            raise
        raise RequestError(f"request {index + 1} of {count}: {error}", error.param) from error


@contextmanager
def _progress_bar(use_tqdm: bool | Bar, total: int) -> Iterator[Callable[[RequestOutput], None]]:
    """A progress bar over finished prompts, with the speeds of input and output so far."""
    if not use_tqdm or not total:
        yield lambda output: None
        return
    if use_tqdm is True:
        from tqdm import tqdm as make_bar
    else:
        make_bar = use_tqdm
    num_tokens = {"input": 0, "output": 0}
    with make_bar(total=total, desc="Processed prompts", dynamic_ncols=True) as bar:

        def show(output: RequestOutput) -> None:
            num_tokens["input"] += len(output.prompt_token_ids)
            num_tokens["output"] += sum(len(answer.token_ids) for answer in output.outputs)
            elapsed = max(bar.format_dict["elapsed"], 1e-9)
            speeds = (f"{name}: {count / elapsed:.2f} toks/s" for name, count in num_tokens.items())
            bar.set_postfix_str("est. speed " + ", ".join(speeds), refresh=False)
            bar.update()

        yield show
