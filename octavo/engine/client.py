"""How a front end reaches its engine: the same few calls, wherever the engine runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.models.registry import GGUF_ARCHITECTURES, find_architecture
from octavo.types.outputs import EngineCoreOutputs, EngineInfo
from octavo.types.requests import EngineCoreRequest
from octavo.weights.loader import ModelFiles


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

    def get_output(self) -> EngineCoreOutputs:
        """The news from the next step."""

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. Returns False, changing nothing, while requests run."""


class InprocClient:
    """The engine lives in this process, and steps when it is asked for output."""

    def __init__(self, config: EngineConfig, source: ModelFiles, num_token_ids: int | None) -> None:
        self.core, self.info = build_engine(config, source, num_token_ids)

    def add_request(self, request: EngineCoreRequest) -> None:
        """See `EngineCoreClient`."""
        self.core.add_request(request)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """See `EngineCoreClient`."""
        self.core.abort_requests(request_ids)

    def get_output(self) -> EngineCoreOutputs:
        """See `EngineCoreClient`."""
        return self.core.step()

    def reset_prefix_cache(self) -> bool:
        """See `EngineCoreClient`."""
        return self.core.reset_prefix_cache()
