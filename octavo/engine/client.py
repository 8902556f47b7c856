"""`EngineCoreClient`: the calls of a front end to its engine core, wherever the core runs."""

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
    """Raise UnsupportedError for an architecture (its name in GGUF files) that Octavo cannot run."""
    find_architecture(architecture, GGUF_ARCHITECTURES)


class EngineCoreClient(Protocol):
    """A front end's handle on an engine core. No call raises for a bad request: an output reports it."""

    info: EngineInfo

    def add_request(self, request: EngineCoreRequest) -> None:
        """Send a request. If it cannot run, an output has a `rejection`."""

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """End requests. No output of them follows. Unknown ids are ignored.

        If a request is a turn of a session, the session ends too. Its other turns end with an output.
        """

    def stop_requests(self, request_ids: Iterable[str]) -> None:
        """End requests with what they have generated so far. No output of them follows. Unknown ids are
        ignored.

        A session goes on after a stopped turn. A stopped turn that has not begun is dropped.
        """

    def end_session(self, session_id: str, error: str | None = None) -> None:
        """End a session and its turns. An unknown id is ignored.

        No output of the turns follows, unless `error` is given. It is the error that ended an earlier turn;
        each remaining turn then ends with an output.
        """

    def get_output(self) -> EngineCoreOutputs:
        """Wait for the next step and return its outputs."""

    def pause(self, state: PauseState) -> None:
        """Set which requests may run: none (PAUSED_ALL), begun ones (PAUSED_NEW), or all (UNPAUSED)."""

    def has_begun_requests(self) -> bool:
        """Whether any request has begun and not ended. With PAUSED_NEW, False means that all are drained."""

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes. Returns False, changing nothing, while requests hold blocks.

        With `reset_running_requests`, running requests are preempted first, and begin again.
        """

    def close(self) -> None:
        """End the engine. May be called again."""


class InprocClient:
    """Has the core in this process. `get_output` runs a step."""

    def __init__(self, config: EngineConfig, model_path: Path, num_token_ids: int | None) -> None:
        self.core, self.info = build_engine(config, model_path, num_token_ids)

    def add_request(self, request: EngineCoreRequest) -> None:
        self.core.add_request(request)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        self.core.abort_requests(request_ids)

    def stop_requests(self, request_ids: Iterable[str]) -> None:
        self.core.stop_requests(request_ids)

    def end_session(self, session_id: str, error: str | None = None) -> None:
        self.core.end_session(session_id, error)

    def get_output(self) -> EngineCoreOutputs:
        return self.core.step()

    def pause(self, state: PauseState) -> None:
        self.core.pause(state)

    def has_begun_requests(self) -> bool:
        return self.core.has_begun_requests()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return self.core.reset_prefix_cache(reset_running_requests)

    def close(self) -> None:
        self.core.close()
