"""How a front end reaches its engine: the same few calls, wherever the engine runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.models.registry import GGUF_ARCHITECTURES, find_architecture
from octavo.types.outputs import EngineCoreOutputs, EngineInfo
from octavo.types.requests import EngineCoreRequest
from octavo.types.steps import PauseState


def check_architecture(architecture: str) -> None:
    """Raise UnsupportedError for the architecture of a GGUF file, as it names it, that cannot be run here."""
    find_architecture(architecture, GGUF_ARCHITECTURES)


class EngineCoreClient(Protocol):
    """A front end's handle on an engine core."""

    info: EngineInfo

    def add_request(self, request: EngineCoreRequest) -> None:
        """Hand over a request. Raises RequestError for one that can never run."""

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """End requests; nothing more will be heard of them. Unknown ids are ignored."""

    def stop_requests(self, request_ids: Iterable[str]) -> None:
        """End requests of which the front end has had enough, of sessions the turn. Nothing more is heard."""

    def stop_turns(self, request_id: str) -> None:
        """End the turns of a session that are under way or to come; it goes on. Nothing is heard of them."""

    def get_output(self) -> EngineCoreOutputs:
        """The news from the next step."""

    def pause(self, state: PauseState) -> None:
        """Let nothing run, or only what has begun; UNPAUSED lets all go on."""

    def has_begun_requests(self) -> bool:
        """Whether a request has begun to run that has not ended: while new ones are paused, what there is to
        drain.
        """

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes. Returns False, changing nothing, while requests hold blocks; those can
        be made to give them up and to begin again.
        """

    def close(self) -> None:
        """End the engine. May be called again."""


class InprocClient:
    """The engine lives in this process, and steps when it is asked for output."""

    def __init__(self, config: EngineConfig, model_path: Path, num_token_ids: int | None) -> None:
        self.core, self.info = build_engine(config, model_path, num_token_ids)

    def add_request(self, request: EngineCoreRequest) -> None:
        """See `EngineCoreClient`."""
        self.core.add_request(request)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """See `EngineCoreClient`."""
        self.core.abort_requests(request_ids)

    def get_output(self) -> EngineCoreOutputs:
        """See `EngineCoreClient`."""
        return self.core.step()

    def stop_requests(self, request_ids: Iterable[str]) -> None:
        """See `EngineCoreClient`."""
        self.core.stop_requests(request_ids)

    def stop_turns(self, request_id: str) -> None:
        """See `EngineCoreClient`."""
        self.core.stop_turns(request_id)

    def pause(self, state: PauseState) -> None:
        """See `EngineCoreClient`."""
        self.core.pause(state)

    def has_begun_requests(self) -> bool:
        """See `EngineCoreClient`."""
        return self.core.has_begun_requests()

    def close(self) -> None:
        """See `EngineCoreClient`."""
        self.core.close()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """See `EngineCoreClient`."""
        return self.core.reset_prefix_cache(reset_running_requests)
