"""`Backend`: computes a model's steps and owns the device's memory.

No backend knows a model, and no model knows a backend: both know the `Ops` vocabulary. Arguments are numpy
arrays, or handles (hidden states, logits) that the same backend has returned. A handle is valid until the
next `forward`.
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
    """Holds weights and the KV cache in memory, and runs steps with them."""

    def kv_head_bytes(self, head_size: int) -> int:
        """The bytes that one token's K and V take in one KV head of this backend's cache."""

    def load_model(self, model: Model) -> None:
        """Bring the model's weights into the form that this backend computes with. Called once, before any
        other method.

        Raises UnsupportedError, which names the weight or layer, for a model that this backend cannot run,
        and CapacityError when its weights do not fit into memory.
        """

    def allocate_kv_cache(self, config: KVCacheConfig) -> None:
        """Allocate `config.total_bytes`, set to zero.

        Raises CapacityError when they do not fit into memory, and UnsupportedError, naming the layers, where
        layers keep what this backend has no operations for.
        """

    def allocate_rows(self, num_rows: int, max_model_len: int) -> None:
        """Reserve a table for the tokens of `num_rows` rows. Raises CapacityError when there is no memory."""

    def write_tokens(self, row: int, start: int, token_ids: list[int]) -> None:
        """Write `token_ids` into the table, at the positions of `row` from `start` on."""

    def forward(self, batch: Batch) -> Any:
        """Run the batch's tokens, which are in the table, and write their K and V into the cache. Returns
        hidden states [T, hidden].
        """

    def compute_logits(self, hidden: Any, indices: np.ndarray) -> Any:
        """The logits [L, vocab] for the rows `indices` [L] int64 of `hidden`."""

    def sample(self, logits: Any, batch: Batch, metadata: SamplingMetadata) -> Pending[SamplerOutput]:
        """Sample one token from each row of the batch's `logits`, and write it into the table. The logits may
        be overwritten. May return before the work is done: the next `forward` finds the tokens in the table.
        """

    def gather_logprobs(self, logits: Any, token_ids: np.ndarray, num_logprobs: int) -> list[TokenLogprobs]:
        """Raw log-probabilities of `token_ids` [L] int64, one for each row of `logits`, and of the
        `num_logprobs` most likely tokens.
        """

    def zero_blocks(self, block_ids: np.ndarray) -> None:
        """Set all pages of the blocks `block_ids` [k] int32 to zero.

        Raises ValueError for a block that does not exist.
        """

    def copy_blocks(self, sources: np.ndarray, destinations: np.ndarray) -> None:
        """Copy all pages of the blocks `sources` [k] int32 to the blocks `destinations` [k] int32.

        Raises ValueError for a block that does not exist, and for a destination that is given twice or that
        is a source, too.
        """
