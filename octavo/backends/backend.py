"""`Backend`: what computes. It owns the device's memory, and is asked for things in numpy arrays or in its
own handles.

No backend knows a model, no model knows a backend: they meet in the `Ops` vocabulary. A handle (hidden
states, logits) belongs to the backend that gave it out and is valid until its next `forward`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from octavo.models.model import Model
from octavo.types.batch import Batch
from octavo.types.kv import KVCacheConfig
from octavo.types.protocols import Pending
from octavo.types.sampling import SamplerOutput, SamplingMetadata, TokenLogprobs


class Backend(Protocol):
    """Places weights and the KV cache in memory, and runs steps over them."""

    def kv_head_bytes(self, head_size: int) -> int:
        """Bytes that one token's K and V in one KV head take in this backend's cache."""

    def load_model(self, model: Model) -> None:
        """Take the model's weights into the form this backend computes with. Once, before anything else.

        Raises UnsupportedError, naming what is in the way, for a model this backend cannot run, and
        CapacityError when its weights do not fit.
        """

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        """Reserve `config.total_bytes`, zeroed.

        Raises CapacityError when they are not to be had, and UnsupportedError, naming the layers, where some
        keep what this backend has no operations for.
        """

    def allocate_rows(self, num_rows: int, max_model_len: int) -> None:
        """Reserve a table for the tokens of `num_rows` rows. Raises CapacityError when there is no memory."""

    def write_tokens(self, row: int, start: int, token_ids: list[int]) -> None:
        """Write `token_ids` into the table, at the positions of `row` from `start` on."""

    def forward(self, batch: Batch) -> Any:
        """Run the batch's tokens, as the table has them, writing their K and V into the cache. Returns hidden
        states [T, hidden].
        """

    def compute_logits(self, hidden: Any, indices: np.ndarray) -> Any:
        """Logits [L, vocab] of the tokens `indices` [L] int64 of a `forward`."""

    def sample(self, logits: Any, batch: Batch, metadata: SamplingMetadata) -> Pending[SamplerOutput]:
        """Sample one token from each row of the batch's `logits`, which are used up, and write it into the
        table. May return before the work is done: the next `forward` finds the tokens in the table.
        """

    def gather_logprobs(self, logits: Any, token_ids: np.ndarray, num_logprobs: int) -> list[TokenLogprobs]:
        """Raw log-probabilities of `token_ids` [L] int64, one for each row of `logits`, and of the
        `num_logprobs` most likely tokens.
        """

    def zero_blocks(self, block_ids: np.ndarray) -> None:
        """Set every page of `block_ids` [k] int32 to zero, whichever group's layers they serve.

        Raises ValueError for blocks that are not there.
        """

    def copy_blocks(self, sources: np.ndarray, destinations: np.ndarray) -> None:
        """Copy every page of `sources` [k] int32 to `destinations` [k] int32, whichever group's they are.

        Raises ValueError for blocks that are not there, for a destination that is given twice or that is a
        source as well.
        """
